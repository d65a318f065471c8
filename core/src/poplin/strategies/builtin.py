"""The built-in strategies, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin.registry import hookimpl, lazy


@hookimpl
def poplin_strategies() -> Mapping[str, Callable[..., Any]]:
    return {"single_device": lazy("poplin.strategies.single_device:SingleDeviceStrategy")}
