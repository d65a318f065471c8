"""The compliance suites of the strategies that need a plan: here is one for the model of the checks."""

from __future__ import annotations

import os

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from poplin.testing import StrategyCompliance
from poplin_fsdp.model_parallel import ModelParallelStrategy
from poplin_fsdp.tensor_parallel import TensorParallelStrategy

#: One layer split by rows of its weight and one by columns; the norm between them, which needs whole rows, is left.
PLAN = {
    "hidden": ColwiseParallel(output_layouts=Replicate()),
    "head": RowwiseParallel(input_layouts=Replicate()),
}


class TensorParallelCompliance(StrategyCompliance):
    """All ranks work on the same data."""

    name = "tensor_parallel"

    def create(self) -> TensorParallelStrategy:
        return TensorParallelStrategy(PLAN)


class ModelParallelCompliance(StrategyCompliance):
    """Both dimensions of the mesh: two ranks share a layer, and two pairs share the data."""

    name = "model_parallel"
    world_size = 4

    def create(self) -> ModelParallelStrategy:
        alone = os.environ.get("WORLD_SIZE", "1") == "1"
        return ModelParallelStrategy(plan=PLAN, tensor_parallel_size=1 if alone else 2)
