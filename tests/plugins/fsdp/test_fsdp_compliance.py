"""The strategies, and their package, against the public compliance suites."""

import pytest

from poplin.testing import PackagingCompliance, StrategyCompliance
from poplin_fsdp.strategy import FSDPStrategy


class TestFSDP(StrategyCompliance):
    name = "fsdp"


class TestPackage(PackagingCompliance):
    distribution = "poplin-fsdp"


@pytest.mark.slow
class TestReplicas(StrategyCompliance):
    name = "hsdp"


@pytest.mark.slow
class TestOneFile(StrategyCompliance):
    def create(self):
        return FSDPStrategy(state_dict_type="full", cpu_offload=True)
