"""Tensor parallelism by a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poplin_fsdp.model_parallel import ModelParallelStrategy


class TensorParallelStrategy(ModelParallelStrategy):
    """Each layer that the plan names is split over processes, which work on the same data.

    ``TensorParallelStrategy({"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()})``: the same as
    ``ModelParallelStrategy(plan=...)``, but for the default sizes: all processes along ``tp``.

    Args:
        plan: ``{name of a submodule, with * for any part: a parallel style of torch's}``; None: the module brings it as
            its attribute ``parallel_plan``.
        tensor_parallel_size: processes along ``tp``; "auto" is all that remain.
        data_parallel_size: processes along ``dp_shard``, over which what the plan leaves is sharded.
        **kwargs: as for ModelParallelStrategy.
    """

    def __init__(
        self,
        plan: Mapping[str, Any] | None = None,
        tensor_parallel_size: int | str = "auto",
        data_parallel_size: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        if data_parallel_size is None:
            data_parallel_size = 1 if tensor_parallel_size == "auto" else "auto"
        super().__init__(
            plan=plan, tensor_parallel_size=tensor_parallel_size, data_parallel_size=data_parallel_size, **kwargs
        )
