"""Training with float8 and int8 linear layers by torchao, as precisions of Poplin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poplin_torchao.float8 import Float8Precision as Float8Precision
    from poplin_torchao.int8 import Int8Precision as Int8Precision

__version__ = "0.1.0"
__all__ = ["Float8Precision", "Int8Precision"]

_HOMES = {"Float8Precision": "float8", "Int8Precision": "int8"}


def __getattr__(name: str) -> Any:
    # Read lazily: the plugin module of this package must not import torch.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
