"""The strategy, and its package, against the public compliance suites."""

import pytest

from poplin.testing import PackagingCompliance, StrategyCompliance

pytestmark = pytest.mark.timeout(600)  # one test launches the ranks for all: on a busy machine it takes its time


class TestDDP(StrategyCompliance):
    name = "ddp"


class TestPackage(PackagingCompliance):
    distribution = "poplin-ddp"
