"""Checkpoints of Poplin runs as safetensors files, which execute nothing when they are read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poplin_safetensors.checkpoint import SafetensorsCheckpointIO as SafetensorsCheckpointIO

__version__ = "0.1.0"
__all__ = ["SafetensorsCheckpointIO"]

_HOMES = {"SafetensorsCheckpointIO": "checkpoint"}


def __getattr__(name: str) -> Any:
    # Read lazily: the plugin module of this package must not import torch.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
