"""The strategy, and its package, against the public compliance suites."""

from poplin.testing import PackagingCompliance, StrategyCompliance


class TestDDP(StrategyCompliance):
    name = "ddp"


class TestPackage(PackagingCompliance):
    distribution = "poplin-ddp"
