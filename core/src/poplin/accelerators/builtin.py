"""The built-in accelerators, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin.registry import hookimpl, lazy


@hookimpl
def poplin_accelerators() -> Mapping[str, Callable[..., Any]]:
    return {"cpu": lazy("poplin.accelerators.cpu:CPUAccelerator")}
