"""Number formats for Poplin: mixed, half and double precision."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poplin_precision.double import DoublePrecision as DoublePrecision
    from poplin_precision.half import HalfPrecision as HalfPrecision
    from poplin_precision.mixed import MixedPrecision as MixedPrecision

__version__ = "0.1.0"
__all__ = ["DoublePrecision", "HalfPrecision", "MixedPrecision"]


_HOMES = {"DoublePrecision": "double", "HalfPrecision": "half", "MixedPrecision": "mixed"}


def __getattr__(name: str) -> Any:
    # Read lazily: the plugin modules of this package must not import torch.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
