"""The built-in cluster environments, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin.registry import hookimpl, lazy


@hookimpl
def poplin_environments() -> Mapping[str, Callable[..., Any]]:
    return {
        "local": lazy("poplin.environments.local:LocalEnvironment"),
        "torchrun": lazy("poplin.environments.torchrun:TorchrunEnvironment"),
    }
