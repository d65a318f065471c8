"""Logs the metrics, hyperparameters and files of Poplin runs to Weights & Biases."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poplin_wandb.logger import WandbLogger as WandbLogger

__version__ = "0.1.0"
__all__ = ["WandbLogger"]

_HOMES = {"WandbLogger": "logger"}


def __getattr__(name: str) -> Any:
    # Read lazily: the plugin module of this package must not import torch.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
