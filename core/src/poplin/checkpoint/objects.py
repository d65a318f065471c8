"""The objects in a state: found, and each with the adapter of its kind."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from poplin.checkpoint.agreement import gather_objects
from poplin.checkpoint.format import PER_RANK_KEY, dotted
from poplin.checkpoint.items import Item, Run, Undo, user_module
from poplin.checkpoint.module_item import ModuleItem
from poplin.checkpoint.optimizer_item import OptimizerItem
from poplin.checkpoint.tree import Path, find_objects
from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.strategies.strategy import Strategy

if TYPE_CHECKING:
    from poplin.wrappers.setups import Setups


def run_of(strategy: Strategy, setups: Setups | None, sharded: bool) -> Run:
    """What the adapters must know of the run."""
    return Run(
        strategy,
        modules=list(setups.modules) if setups is not None else [],
        optimizers=list(setups.optimizers) if setups is not None else [],
        sharded=sharded,
    )


def objects_in(state: Mapping[str, Any], strategy: Strategy, setups: Setups | None, sharded: bool) -> dict[Path, Item]:
    """The adapter of each object in ``state``.

    Raises:
        ArgumentTypeError: a strategy is in it.
        ArgumentValueError: the state contains itself, or is nested too deeply.
    """
    run = run_of(strategy, setups, sharded)
    try:
        found = [entry for key, value in state.items() for entry in find_objects(value, (key,))]
    except RecursionError:
        raise ArgumentValueError("The state is nested too deeply: flatten it. Nothing was done.") from None
    run.named_modules.update(
        {dotted(path): user_module(value) for path, value in found if isinstance(value, nn.Module)}
    )
    return {path: item_for(path, value, run) for path, value in found}


def item_for(path: Path, value: Any, run: Run) -> Item:
    """The adapter for an object in the state."""
    if isinstance(value, nn.Module):
        return ModuleItem(path, value, run)
    if isinstance(value, Optimizer):
        return OptimizerItem(path, value, run)
    if isinstance(value, Strategy):
        raise ArgumentTypeError(
            f"{dotted(path)} is a strategy. What the run's strategy keeps is saved and restored by itself: leave it "
            "out of the state. Nothing was done."
        )
    return StatefulItem(path, value, run)


class StatefulItem(Item):
    """Anything with ``state_dict`` and ``load_state_dict``: a scheduler, a dataloader, a Fabric.

    If it has a true attribute ``per_rank_state``, the states of all ranks are saved, and each rank gets its own back.
    When the number of ranks is another by then, its ``load_per_rank_states(states, rank, world_size)`` decides, if it
    has one; else ranks without a state of their own stay as they are, which is warned about.
    """

    def __init__(self, path: Path, value: Any, run: Run) -> None:
        super().__init__(path, value, run)
        self.per_rank = bool(getattr(value, "per_rank_state", False))
        self.restored_last = bool(getattr(value, "restored_last", False))

    def state(self) -> Any:
        return self.value.state_dict()

    def gathered(self, state: Any) -> Any:
        """What is saved: ``state``, or that of all ranks; then it is a collective."""
        return {PER_RANK_KEY: gather_objects(self.run.strategy, state)} if self.per_rank else state

    def changed_world(self, saved: Any) -> str:
        """What happens because the number of ranks is another than at the save; empty if it isn't."""
        states = per_rank_states(saved)
        now = self.run.strategy.world_size
        if states is None or len(states) == now:
            return ""
        before = f"{self.name} was saved by {len(states)} process(es), and there are {now} now: "
        if hasattr(self.value, "load_per_rank_states"):
            return before + "it goes on from what the saved states have in common"
        if now < len(states):
            return before + f"the states of rank(s) {now} and above are left out"
        return before + f"rank(s) {len(states)} and above stay as they are"

    def restore(self, saved: Any, strict: bool) -> None:
        states = per_rank_states(saved)
        if states is None:
            self.value.load_state_dict(saved)
            return
        rank, world_size = self.run.strategy.global_rank, self.run.strategy.world_size
        if len(states) != world_size and hasattr(self.value, "load_per_rank_states"):
            self.value.load_per_rank_states(states, rank, world_size)
        elif rank < len(states):
            self.value.load_state_dict(states[rank])

    def snapshot(self) -> Undo:
        before = copy.deepcopy(self.value.state_dict())
        return lambda: self.value.load_state_dict(before)


def per_rank_states(saved: Any) -> list[Any] | None:
    """The states of the ranks, if ``saved`` consists of these."""
    if isinstance(saved, Mapping) and set(saved) == {PER_RANK_KEY}:
        return list(saved[PER_RANK_KEY])
    return None
