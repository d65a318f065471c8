"""What this package offers. Light: it imports neither torch nor torchao before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_precisions() -> Mapping[str, Callable[..., Any]]:
    """``torchao-float8`` and ``torchao-int8``."""
    return {
        "torchao-float8": lazy("poplin_torchao.float8:Float8Precision"),
        "torchao-int8": lazy("poplin_torchao.int8:Int8Precision"),
    }
