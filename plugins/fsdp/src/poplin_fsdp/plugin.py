"""What this package offers. Light: it imports neither torch nor a strategy before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_strategies() -> Mapping[str, Callable[..., Any]]:
    """Sharding over all devices, over groups of them that replicate one another, and by a plan of the user's."""
    sharded = "poplin_fsdp.strategy:FSDPStrategy"
    return {
        "fsdp": lazy(sharded),
        "fsdp_cpu_offload": lazy(sharded, cpu_offload=True),
        "hsdp": lazy(sharded, sharding_strategy="HYBRID_SHARD"),
        "model_parallel": lazy("poplin_fsdp.model_parallel:ModelParallelStrategy"),
        "tensor_parallel": lazy("poplin_fsdp.tensor_parallel:TensorParallelStrategy"),
    }
