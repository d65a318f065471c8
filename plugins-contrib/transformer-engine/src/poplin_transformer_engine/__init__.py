"""Training with float8 by NVIDIA's Transformer Engine, as a precision of Poplin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poplin_transformer_engine.precision import TransformerEnginePrecision as TransformerEnginePrecision

__version__ = "0.1.0"
__all__ = ["TransformerEnginePrecision"]

_HOMES = {"TransformerEnginePrecision": "precision"}


def __getattr__(name: str) -> Any:
    # Read lazily: the plugin module of this package must not import torch.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
