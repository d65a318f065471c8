"""The strategies and their package against the public compliance suites."""

import pytest

from poplin.testing import PackagingCompliance, StrategyCompliance
from poplin_fsdp.strategy import FSDPStrategy

pytestmark = pytest.mark.timeout(600)  # one test launches the ranks for all: on a busy machine it takes its time


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
class TestOneFile(StrategyCompliance):
    def create(self):
        return FSDPStrategy(state_dict_type="full", sharding_strategy="SHARD_GRAD_OP")


class TestPackage(PackagingCompliance):
    distribution = "poplin-fsdp"
