"""Checks of what a strategy saves and loads."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from poplin import Fabric
from poplin.checkpoint import TorchCheckpointIO
from poplin.strategies import parameter_names
from poplin.testing.case import Case
from poplin.testing.checks import SEVERAL, requirement
from poplin.testing.suites.strategy_base import MakeOptimizer, StrategyBase
from poplin.testing.suites.training import (
    fabric_training,
    optimizer_of,
    plain_training,
    seeded,
    stateless_optimizer_of,
)
from poplin.wrappers import unwrap
from poplin.wrappers.sharing import link_of

STEPS = 2


class Saving(StrategyBase):
    """Checks of state dicts, ``save_checkpoint`` and ``load_checkpoint``."""

    @requirement("Strategy.get_module_state_dict", processes=SEVERAL)
    def test_a_module_is_saved_under_the_users_names(self, case: Case) -> None:
        """The state dict of a set-up module has the names and shapes of the user's module."""
        fabric = self.fabric(case)
        module, _ = self.set_up(fabric)
        found = self.values(fabric, module)
        expected = {name: tuple(value.shape) for name, value in seeded(self.model).state_dict().items()}
        if case.rank == 0:
            case.expect_equal({name: tuple(value.shape) for name, value in found.items()}, expected, "names and shapes")

    @requirement("Strategy.load_module_state_dict", processes=SEVERAL)
    def test_a_module_takes_the_values_that_it_is_given(self, case: Case) -> None:
        """``load_module_state_dict`` puts full values into a set-up module, and refuses names that don't fit."""
        fabric = self.fabric(case)
        module, _ = self.set_up(fabric)
        other = seeded(self.model, 7)
        inner = link_of(module).forward_module
        fabric.strategy.load_module_state_dict(inner, other.state_dict(), strict=True)
        self.expect_values(case, self.values(fabric, module), other, "after load_module_state_dict")
        misspelt = {f"wrong.{name}": value for name, value in other.state_dict().items()}
        case.expect_error(
            Exception,
            lambda: fabric.strategy.load_module_state_dict(inner, misspelt, strict=True),
            "for names that the module doesn't have, strict=True",
        )

    @requirement("Strategy.get_optimizer_state", processes=SEVERAL)
    def test_an_optimizers_state_is_saved_by_parameter_name(self, case: Case) -> None:
        """``get_optimizer_state`` has the full moments of each parameter under the user's name for it."""
        fabric, module, optimizer = self._trained(case)
        state = self._optimizer_state(fabric, module, optimizer)
        if case.rank and not state.get("state"):
            return
        expected = {name: tuple(value.shape) for name, value in seeded(self.model).named_parameters()}
        case.expect_equal(sorted(state["state"]), sorted(expected), "names in the optimizer's state")
        for name, shape in expected.items():
            moment = state["state"][name].get("exp_avg")
            case.expect(isinstance(moment, Tensor), f"exp_avg of {name!r}", moment)
            case.expect_equal(tuple(moment.shape), shape, f"shape of exp_avg of {name!r}")

    @requirement("Strategy.save_checkpoint", processes=SEVERAL)
    def test_what_was_saved_is_there_when_save_returns(self, case: Case) -> None:
        """When ``save`` returns, on any rank, the checkpoint is whole and can be read."""
        fabric, module, optimizer = self._trained(case)
        path = case.folder / "checkpoint"
        fabric.save(path, {"model": module, "optimizer": optimizer, "step": STEPS})
        case.expect(path.exists(), "a checkpoint where it was saved, at once", "nothing")
        found = fabric.load(path)
        case.expect_equal(found.get("step"), STEPS, "the plain value 'step' in the checkpoint")

    @requirement("Strategy.load_checkpoint", processes=SEVERAL)
    def test_a_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(self, case: Case) -> None:
        """What was loaded trains on to the values of an unbroken training."""
        if self.create().averages_gradients:
            self._goes_on(case, averages=True, make_optimizer=optimizer_of)
        else:  # the moments of each rank are its own, and a checkpoint has one for all: there must be none
            self._goes_on(case, averages=False, make_optimizer=stateless_optimizer_of)
            self._comes_back(case)

    def _goes_on(self, case: Case, averages: bool, make_optimizer: MakeOptimizer) -> None:
        fabric = self.fabric(case)
        module, optimizer = self.set_up(fabric, make_optimizer=make_optimizer)
        steps = self.steps(STEPS)
        fabric_training(fabric, module, optimizer, steps)
        path = case.folder / "checkpoint"
        fabric.save(path, {"model": module, "optimizer": optimizer})
        _wait_for(path)
        fabric.close()
        fabric = self.fabric(case)  # with a strategy that knows of nothing but the checkpoint
        fresh, its_optimizer = self.set_up(fabric, seed=5, make_optimizer=make_optimizer)
        fabric.load(path, {"model": fresh, "optimizer": its_optimizer})
        fabric_training(fabric, fresh, its_optimizer, steps, start=steps)
        found = self.values(fabric, fresh)
        fabric.close()
        expected, _ = self.expected(case, averages, 2 * steps, make_optimizer=make_optimizer)
        self.expect_values(case, found, expected, "after a training that was resumed")

    def _comes_back(self, case: Case) -> None:
        """What rank 0 had is there again: the file has its moments."""
        fabric, module, optimizer = self._trained(case)
        path = case.folder / "moments"
        fabric.save(path, {"model": module, "optimizer": optimizer})
        _wait_for(path)
        saved = self._moments(fabric, module, optimizer)
        fresh, its_optimizer = self.set_up(fabric, seed=5)
        fabric.load(path, {"model": fresh, "optimizer": its_optimizer})
        found = self._moments(fabric, fresh, its_optimizer)
        if case.rank == 0:
            self.expect_values(case, found, saved, "after it was loaded")

    @requirement("Strategy.get_module_state_dict", processes=SEVERAL)
    def test_saving_changes_nothing_of_the_training(self, case: Case) -> None:
        """A training that saves after each step ends with the values of one that doesn't."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(fabric)
        steps = self.steps(STEPS)
        for step in range(steps):
            fabric_training(fabric, module, optimizer, 1, start=step)
            fabric.save(case.folder / f"checkpoint{step}", {"model": module, "optimizer": optimizer})
        found = self.values(fabric, module)
        fabric.close()
        expected, _ = self.expected(case, False, steps)  # whatever it trains
        self.expect_values(case, found, expected, "after a training with checkpoints")

    @requirement("Strategy.save_checkpoint", processes=SEVERAL)
    def test_a_single_process_reads_what_was_saved(self, case: Case) -> None:
        """The checkpoint holds full values by the user's names, for any other strategy."""
        fabric, module, _ = self._trained(case)
        held = self.values(fabric, module)
        path = case.folder / "checkpoint"
        fabric.save(path, {"model": module})
        _wait_for(path)
        fabric.barrier("saved")
        if case.rank == 0:
            reference = seeded(self.model)
            plain_training(reference, self.steps(STEPS))
            expected = self.values_of(reference) if fabric.strategy.averages_gradients else held
            plain = seeded(self.model, 9)
            with _alone(), Fabric(accelerator="cpu", strategy="single_device", devices=1) as single:
                single.load(path, {"model": single.setup(plain)})
            self.expect_values(case, self.values_of(plain), expected, "as a single process has read it")
        fabric.barrier("read")

    @requirement("Strategy.save_checkpoint", processes=SEVERAL)
    def test_a_file_is_written_by_rank_zero_alone(self, case: Case) -> None:
        """Where the checkpoint IO takes whole states, only global rank 0 hands it one."""
        writer = _Noting()
        fabric = self.fabric(case, plugins=[writer])
        if self.create().checkpoint_io_name is not None or fabric.strategy.owns_parameters:
            case.not_claimed("it writes by a way of its own: checkpoint_io_name is set, or owns_parameters = True")
        module, _ = self.set_up(fabric)
        path = case.folder / "checkpoint"
        fabric.save(path, {"model": module})
        _wait_for(path)
        case.expect_equal(writer.calls, 1 if case.rank == 0 else 0, f"calls of save_checkpoint on rank {case.rank}")

    @requirement("Strategy.save_checkpoint", processes=SEVERAL)
    def test_a_save_that_fails_on_one_rank_fails_on_all(self, case: Case) -> None:
        """Where the checkpoint can't be written every rank raises, and the next save works."""
        writer = _Noting()
        writer.fails = True
        fabric = self.fabric(case, plugins=[writer])
        if self.create().checkpoint_io_name is not None or fabric.strategy.owns_parameters:
            case.not_claimed("it writes by a way of its own: checkpoint_io_name is set, or owns_parameters = True")
        module, _ = self.set_up(fabric)
        path = case.folder / "checkpoint"
        case.expect_error(Exception, lambda: fabric.save(path, {"model": module}), "where rank 0 can't write")
        writer.fails = False
        fabric.save(path, {"model": module})
        _wait_for(path)
        case.expect(path.exists(), "a checkpoint, by the next save", "nothing")

    def _trained(self, case: Case) -> tuple[Fabric, Any, Any]:
        fabric = self.fabric(case)
        module, optimizer = self.set_up(fabric)
        fabric_training(fabric, module, optimizer, self.steps(STEPS))
        return fabric, module, optimizer

    def _moments(self, fabric: Fabric, module: Any, optimizer: Any) -> dict[str, Tensor]:
        """The tensors of the optimizer's state, by parameter and name of the moment."""
        state = self._optimizer_state(fabric, module, optimizer).get("state", {})
        return {
            f"{moment} of {name}": value.detach().cpu().float()
            for name, moments in state.items()
            for moment, value in moments.items()
            if isinstance(value, Tensor)
        }

    def _optimizer_state(self, fabric: Fabric, module: Any, optimizer: Any) -> Mapping[str, Any]:
        strategy = fabric.strategy
        link = link_of(module)
        owner = link.forward_module if strategy.owns_parameters else optimizer.optimizer
        return strategy.get_optimizer_state(owner, parameter_names({"": unwrap(module)}))


class _Noting(TorchCheckpointIO):
    """Counts what it is asked to write, and fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.fails = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        self.calls += 1
        if self.fails:
            raise OSError("the disk is full, says the check")
        super().save_checkpoint(checkpoint, path, storage_options=storage_options)


def _wait_for(path: Path) -> None:
    """Until the checkpoint is there, for a while: that it is there at once is another check's matter."""
    deadline = time.monotonic() + 5
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """This process on its own: no rank in its environment."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
