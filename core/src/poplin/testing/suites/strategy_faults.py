"""Checks of what a strategy does when a rank fails."""

from __future__ import annotations

import functools
import os
import time

import torch

from poplin.errors import CollectiveError
from poplin.testing.case import Case
from poplin.testing.checks import SEVERAL, requirement
from poplin.testing.suites.strategy_base import StrategyBase
from poplin.testing.suites.training import share

#: Seconds that collectives wait in these checks.
SHORT = 2.5


class Faults(StrategyBase):
    """Checks of missing ranks, and of the end."""

    @requirement("Strategy.all_reduce", processes=SEVERAL, alone=True)
    def test_a_rank_that_stays_away_is_an_error_on_the_others(self, case: Case) -> None:
        """A collective that a rank never comes to raises CollectiveError when the strategy's timeout is over."""
        case.needs_several()
        fabric = self.fabric(case, timeout=SHORT)
        strategy = fabric.strategy
        strategy.barrier("all here")
        if case.rank == 0:
            tensor = torch.ones(1, device=strategy.root_device)
            reduce = functools.partial(strategy.all_reduce, tensor, reduce_op="sum")  # a mean may concern a part only
            case.expect_error(CollectiveError, reduce, "where another rank stays away")
            (case.folder / "over").touch()
        else:
            _wait_for(case.folder / "over", self.limit / 2)

    @requirement("Strategy.backward", processes=SEVERAL, alone=True)
    def test_a_rank_that_dies_in_training_is_an_error_on_the_others(self, case: Case) -> None:
        """When a rank is killed, the others raise instead of waiting for ever."""
        case.needs_several()
        fabric = self.fabric(case, timeout=SHORT)
        module, _ = self.set_up(fabric)
        inputs = share(fabric, torch.ones(8, 8))
        fabric.backward(module(inputs).sum(), model=module)
        fabric.barrier("one step")
        if case.rank == case.world_size - 1:
            case.die()

        def going_on() -> None:
            fabric.backward(module(inputs).sum(), model=module)
            fabric.barrier("another step")

        case.expect_error(Exception, going_on, "where another rank has died")

    @requirement("Strategy.teardown", processes=SEVERAL)
    def test_teardown_destroys_the_process_group_that_it_made(self, case: Case) -> None:
        """After ``close`` no process group of the strategy's is left, and a new Fabric works."""
        for _ in range(2):
            fabric = self.fabric(case)
            fabric.all_reduce(torch.ones(1))
            fabric.close()
            case.expect(not torch.distributed.is_initialized(), "no process group after close()", "one is up")


def _wait_for(path: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not os.path.exists(str(path)) and time.monotonic() < deadline:
        time.sleep(0.02)
