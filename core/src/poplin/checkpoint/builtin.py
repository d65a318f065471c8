"""The built-in checkpoint IOs, registered as any plugin registers its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin.registry import hookimpl, lazy


@hookimpl
def poplin_checkpoint_ios() -> Mapping[str, Callable[..., Any]]:
    return {
        "torch": lazy("poplin.checkpoint.torch_io:TorchCheckpointIO"),
        "sharded": lazy("poplin.checkpoint.sharded_io:ShardedCheckpointIO"),
    }
