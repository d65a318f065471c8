"""Hear what this process does to the world: files written, processes started, connections made."""

from __future__ import annotations

import os
import sys
from typing import Any


class Listening:
    """Notes audit events of this process while it is entered. For processes that end with their check.

    Args:
        *events: names of Python's audit events; ``"write"`` stands for files that are opened for writing.
    """

    def __init__(self, *events: str) -> None:
        self.events: list[str] = []
        self._wanted = frozenset(events)
        self._active = False
        sys.addaudithook(self._hear)  # it can't be removed

    def __enter__(self) -> Listening:
        self._active = True
        return self

    def __exit__(self, *about: object) -> None:
        self._active = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event in self._wanted:
            self.events.append(f"{event}{arguments[:2]!r}")
        elif event == "open" and "write" in self._wanted:
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if writes and isinstance(path, (str, bytes)) and not _is_noise(os.fsdecode(path)):
                self.events.append(f"open({os.fsdecode(path)!r}, {mode!r})")


def _is_noise(path: str) -> bool:
    return "__pycache__" in path or path.startswith(("/dev/", "/proc/"))
