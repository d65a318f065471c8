"""Run a function, print or warn on global rank 0 only.

The rank lives in one place, `lightning_utilities`' ``rank_zero_only.rank``, so that loggers and callbacks written
for Lightning see it too. It is set when a Fabric's processes are up, and given back when the Fabric is closed.
"""

from __future__ import annotations

import os

from lightning_utilities.core.rank_zero import (
    rank_zero_debug,
    rank_zero_deprecation,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)

__all__ = ["rank_zero_debug", "rank_zero_deprecation", "rank_zero_info", "rank_zero_only", "rank_zero_warn", "set_rank"]


def set_rank(rank: int) -> None:
    """Say which global rank this process has, for everything guarded by ``rank_zero_only``."""
    setattr(rank_zero_only, "rank", rank)  # noqa: B010 - an attribute that the library's types don't tell of


def rank_from_environment() -> int:
    """The global rank that a launcher has put into the environment; 0 where none did."""
    for key in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        if (value := os.environ.get(key)) is not None and value.isdigit():
            return int(value)
    return 0


if getattr(rank_zero_only, "rank", None) is None:  # a function may be guarded before any Fabric exists
    set_rank(rank_from_environment())
