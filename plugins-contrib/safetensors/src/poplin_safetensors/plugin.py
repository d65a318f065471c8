"""What this package offers. Light: it imports neither torch nor safetensors before the checkpoint IO is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_checkpoint_ios() -> Mapping[str, Callable[..., Any]]:
    """``safetensors``, which reads its own files in the role ``auto`` too."""
    return {"safetensors": lazy("poplin_safetensors.checkpoint:SafetensorsCheckpointIO")}
