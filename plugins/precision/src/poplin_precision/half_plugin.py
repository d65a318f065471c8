"""What this package offers for half precision. Light: it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_precisions() -> Mapping[str, Callable[..., Any]]:
    """``16-true`` and ``bf16-true``."""
    target = "poplin_precision.half:HalfPrecision"
    return {name: lazy(target, precision=name) for name in ("16-true", "bf16-true")}
