"""What this package offers. Light: it imports neither torch nor mlflow before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_loggers() -> Mapping[str, Callable[..., Any]]:
    """``mlflow``"""
    return {"mlflow": lazy("poplin_mlflow.logger:MLFlowLogger")}
