"""What this package offers for mixed precision. Light: it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_precisions() -> Mapping[str, Callable[..., Any]]:
    """``16-mixed`` and ``bf16-mixed``."""
    target = "poplin_precision.mixed:MixedPrecision"
    return {name: lazy(target, precision=name) for name in ("16-mixed", "bf16-mixed")}
