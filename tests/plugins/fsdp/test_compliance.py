"""The strategies and their package against the public compliance suites."""

import pytest
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from poplin.testing import PackagingCompliance, StrategyCompliance
from poplin_fsdp.compliance import PLAN, ModelParallelCompliance, TensorParallelCompliance
from poplin_fsdp.model_parallel import ModelParallelStrategy
from poplin_fsdp.strategy import FSDPStrategy

pytestmark = pytest.mark.timeout(600)  # one test launches the ranks for all: on a busy machine it takes its time


def parallelize(module, mesh):
    """What a user of Lightning's ModelParallelStrategy writes."""
    parallelize_module(module, mesh["tensor_parallel"], PLAN)
    return fully_shard(module, mesh=mesh["data_parallel"])


@pytest.mark.slow
class TestFSDP(StrategyCompliance):
    name = "fsdp"


@pytest.mark.slow
class TestOffloaded(StrategyCompliance):
    name = "fsdp_cpu_offload"


@pytest.mark.slow
class TestHybrid(StrategyCompliance):
    name = "hsdp"


@pytest.mark.slow
class TestReplicasOfHalves(StrategyCompliance):
    world_size = 4

    def create(self):
        return FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(2, 2))


@pytest.mark.slow
class TestOneFile(StrategyCompliance):
    def create(self):
        return FSDPStrategy(state_dict_type="full", sharding_strategy="SHARD_GRAD_OP")


@pytest.mark.slow
class TestTensorParallel(TensorParallelCompliance):
    pass


@pytest.mark.slow
class TestModelParallel(ModelParallelCompliance):
    pass


@pytest.mark.slow
class TestAFunction(StrategyCompliance):
    world_size = 4

    def create(self):
        return ModelParallelStrategy(parallelize, data_parallel_size=2, save_distributed_checkpoint=False)


class TestPackage(PackagingCompliance):
    distribution = "poplin-fsdp"
