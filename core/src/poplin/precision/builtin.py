"""The built-in precision, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin.registry import hookimpl, lazy


@hookimpl
def poplin_precisions() -> Mapping[str, Callable[..., Any]]:
    return {"32-true": lazy("poplin.precision.precision:Precision")}
