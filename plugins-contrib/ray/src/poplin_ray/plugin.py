"""What this package offers. Light: it imports neither torch nor ray before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_launchers() -> Mapping[str, Callable[..., Any]]:
    """``ray``"""
    return {"ray": lazy("poplin_ray.launcher:RayLauncher")}
