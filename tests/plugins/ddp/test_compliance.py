"""The strategy against the public compliance suite."""

from poplin.testing import StrategyCompliance


class TestDDP(StrategyCompliance):
    name = "ddp"
