"""What this package offers for double precision. Light: it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_precisions() -> Mapping[str, Callable[..., Any]]:
    """``64-true``."""
    return {"64-true": lazy("poplin_precision.double:DoublePrecision")}
