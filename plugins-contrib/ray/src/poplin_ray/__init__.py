"""Runs the processes of Poplin on a Ray cluster."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poplin_ray.launcher import RayLauncher as RayLauncher

__version__ = "0.1.0"
__all__ = ["RayLauncher"]

_HOMES = {"RayLauncher": "launcher"}


def __getattr__(name: str) -> Any:
    # Read lazily: the plugin module of this package must not import torch.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
