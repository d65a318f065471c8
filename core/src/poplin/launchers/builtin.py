"""The built-in launchers, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin.registry import hookimpl, lazy


@hookimpl
def poplin_launchers() -> Mapping[str, Callable[..., Any]]:
    return {
        "subprocess": lazy("poplin.launchers.subprocess:SubprocessLauncher"),
        "spawn": lazy("poplin.launchers.multiprocessing:MultiProcessingLauncher", start_method="spawn"),
        "fork": lazy("poplin.launchers.multiprocessing:MultiProcessingLauncher", start_method="fork"),
        "forkserver": lazy("poplin.launchers.multiprocessing:MultiProcessingLauncher", start_method="forkserver"),
    }
