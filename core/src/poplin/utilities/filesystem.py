"""Whether all processes see the same files."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any


def is_shared_filesystem(strategy: Any, path: str | os.PathLike[str] | None = None, timeout: float = 3) -> bool:
    """Whether what rank 0 writes at ``path`` can be read on every rank. A collective: every rank calls it.

    Args:
        strategy: of a Fabric whose processes exist.
        path: a folder, or a file in it; the working directory by default. A URL is taken for shared.
        timeout: seconds that a rank waits for the file of rank 0, which a network file system may show late.

    Raises:
        OSError: rank 0 can't write there (the other ranks then raise a CollectiveError).
    """
    where = os.fspath(path) if path is not None else os.getcwd()
    if "://" in where or strategy.world_size == 1:
        return True
    folder = os.path.abspath(where if os.path.isdir(where) else os.path.dirname(where) or ".")
    created: str | None = None
    try:
        with strategy.rank_zero_first():
            if strategy.is_global_zero:
                descriptor, created = tempfile.mkstemp(prefix=".poplin-shared-", dir=folder)
                os.close(descriptor)
        seen = _appears(strategy.broadcast(created), timeout)
        return bool(strategy.reduce_boolean_decision(seen))
    finally:
        if created is not None:
            os.unlink(created)


def _appears(path: str, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
