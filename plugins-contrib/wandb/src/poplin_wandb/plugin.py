"""What this package offers. Light: it imports neither torch nor wandb before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_loggers() -> Mapping[str, Callable[..., Any]]:
    """``wandb``"""
    return {"wandb": lazy("poplin_wandb.logger:WandbLogger")}
