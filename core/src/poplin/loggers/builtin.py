"""The built-in logger, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin.registry import hookimpl, lazy


@hookimpl
def poplin_loggers() -> Mapping[str, Callable[..., Any]]:
    return {"csv": lazy("poplin.loggers.csv:CSVLogger")}
