"""What a strategy keeps between steps: it travels under Poplin's own key, for strategies of the class that wrote it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from poplin.checkpoint.agreement import on_all_ranks
from poplin.checkpoint.format import dotted, walk_tensors
from poplin.checkpoint.items import Item, Run, Undo
from poplin.checkpoint.parts import is_sharded_tensor
from poplin.checkpoint.safety import Plain
from poplin.errors import CheckpointError, CollectiveError, PossibleUserWarning
from poplin.strategies.strategy import Strategy

#: Keys of what is recorded.
_CLASS, _STATE = "class", "state"


class StrategyItem(Item):
    """The strategy, whose state is on no key of the user's. Its methods may be collectives."""

    collective = True

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(("strategy",), strategy, Run(strategy))

    def state(self) -> Any:
        return self.value.state_dict()

    def restore(self, saved: Any, strict: bool) -> None:
        self.value.load_state_dict(saved)

    def snapshot(self) -> Undo:
        before = copy.deepcopy(self.value.state_dict())
        return lambda: self.value.load_state_dict(before)


def strategy_record(strategy: Strategy, doing: str) -> dict[str, Any] | None:
    """What is saved of the strategy, None if there is nothing; a collective if it keeps a state at all.

    Args:
        strategy: the run's.
        doing: for messages.

    Raises:
        CheckpointError: its state can't be had, or can't be written; nothing was written.
    """
    if not _keeps_state(strategy):
        return None
    state = on_all_ranks(strategy, doing, lambda: _plain_state(strategy))
    return {_CLASS: _class_of(strategy), _STATE: state} if state else None


def recorded_state(strategy: Strategy, record: Any, where: str) -> Any:
    """The state in ``record`` if a strategy of this class wrote it, else None.

    Args:
        strategy: the run's.
        record: what :func:`strategy_record` returned; anything else, None for instance, has no state.
        where: for messages.
    """
    if not isinstance(record, Mapping):
        return None
    if record.get(_CLASS) == _class_of(strategy):
        return record.get(_STATE)
    if _keeps_state(strategy):
        warnings.warn(
            f"{where} has a state of the strategy {record.get(_CLASS)}, and this run's strategy is "
            f"{_class_of(strategy)}, which keeps one too: it was not given the other's, and stays as it is.",
            PossibleUserWarning,
            stacklevel=2,
        )
    return None


def _keeps_state(strategy: Strategy) -> bool:
    """Whether its class has a ``state_dict`` of its own: for all others a save has nothing to agree upon."""
    return type(strategy).state_dict is not Strategy.state_dict


def _class_of(strategy: Strategy) -> str:
    cls = type(strategy)
    # a script that is run has one name here, and another in the processes that it spawned
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}:{cls.__qualname__}"


def _plain_state(strategy: Strategy) -> dict[str, Any]:
    name = type(strategy).__name__
    try:
        state = strategy.state_dict()
    except CollectiveError:
        raise
    except Exception as error:  # the strategy's own code
        raise CheckpointError(
            f"The state of the strategy {name} can't be had: state_dict() raised {type(error).__name__}: {error}. "
            "Nothing was written."
        ) from error
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"The state of the strategy {name} can't be had: state_dict() returned a {type(state).__name__}, and a "
            "dictionary is needed. Nothing was written."
        )
    plain = Plain(sharded=True)
    path = (f"strategy {name}",)
    result: dict[str, Any] = plain.value(state, path)
    plain.finish()
    parts = [dotted(where) for where, tensor in walk_tensors(result, path) if is_sharded_tensor(tensor)]
    if parts:
        raise CheckpointError(
            f"The state of the strategy {name} has sharded tensors, of which each rank holds a part: "
            f"{', '.join(parts[:5])}. Rank 0's state is what is saved: state_dict() must return their full_tensor(). "
            "Nothing was written."
        )
    return result
