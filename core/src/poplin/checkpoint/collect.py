"""From the state that the user passes to the plain values that are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from poplin.checkpoint.agreement import on_all_ranks
from poplin.checkpoint.checkpoint_io import StoragePath
from poplin.checkpoint.filtering import Filter, check_filter, filtered
from poplin.checkpoint.format import RESERVED_KEY
from poplin.checkpoint.items import Item
from poplin.checkpoint.objects import StatefulItem, objects_in
from poplin.checkpoint.partly import refuse_partly_loaded
from poplin.checkpoint.parts import is_sharded_tensor
from poplin.checkpoint.safety import Plain
from poplin.checkpoint.storage import checked_path
from poplin.checkpoint.strategy_item import strategy_record
from poplin.checkpoint.tree import Path, with_states
from poplin.errors import ArgumentTypeError, ArgumentValueError, CheckpointError

if TYPE_CHECKING:
    from poplin.precision.precision import Precision
    from poplin.strategies.strategy import Strategy
    from poplin.wrappers.setups import Setups


def collect(
    path: StoragePath,
    state: Mapping[str, Any],
    strategy: Strategy,
    precision: Precision | None,
    setups: Setups | None,
    filter: Filter | None,
) -> tuple[str, dict[str, Any]]:
    """Path and checkpoint, the same on every rank (full values may be on rank 0 only)."""
    doing = "saving a checkpoint"

    def prepare() -> tuple[str, dict[Path, Item]]:
        check_mapping(state, "save", Mapping)
        where = checked_path(path)
        if RESERVED_KEY in state:
            raise ArgumentValueError(f"The key {RESERVED_KEY!r} is Poplin's own. Call your entry something else.")
        items = objects_in(state, strategy, setups, sharded=is_sharded(strategy))
        check_filter(filter, state, items)
        refuse_partly_loaded(items.values())
        if filter and not getattr(strategy.checkpoint_io, "takes_filter", True):
            raise ArgumentTypeError(
                f"{type(strategy.checkpoint_io).__name__} writes objects whole, and can't leave out what a filter "
                "does. Save through another checkpoint IO (plugins='torch'), or without it. Nothing was written."
            )
        return where, items

    where, items = on_all_ranks(strategy, doing, prepare)
    where = _agreed(strategy, where, items)
    doing = f"saving {where}"
    states: dict[Path, Any] = {}
    # what needs no collective comes first, so that a rank that fails there leaves none of the others waiting in one
    local = [item for item in items.values() if not item.collective]
    states.update(on_all_ranks(strategy, doing, lambda: {item.path: _local_state(item) for item in local}))
    for item in local:
        if isinstance(item, StatefulItem):
            states[item.path] = item.gathered(states[item.path])
    collective = [item for item in items.values() if item.collective]
    states.update(on_all_ranks(strategy, doing, lambda: {item.path: _state_of(item) for item in collective}))
    record = strategy_record(strategy, doing)  # once it is certain that no rank has failed: it may be a collective
    return where, on_all_ranks(
        strategy,
        doing,
        lambda: _plain(state, items, states, filter, precision, record, is_sharded(strategy), strategy.is_global_zero),
    )


def _local_state(item: Item) -> Any:
    state = _state_of(item)
    if isinstance(item, StatefulItem) and item.per_rank:  # it will be sent to the other ranks: this rank fails before
        plain = Plain()
        state = plain.value(state, item.path)
        plain.finish()
    return state


def _state_of(item: Item) -> Any:
    try:
        return item.state()
    except CheckpointError:
        raise
    except Exception as error:  # the object's own code
        raise CheckpointError(
            f"The state of {item.name} can't be had: {type(error).__name__}: {error}. Nothing was written."
        ) from error


def _plain(
    state: Mapping[str, Any],
    items: Mapping[Path, Item],
    states: Mapping[Path, Any],
    filter: Filter | None,
    precision: Precision | None,
    record: dict[str, Any] | None,
    sharded: bool,
    first: bool,
) -> dict[str, Any]:
    plain = Plain(sharded=sharded)
    tree = filtered(with_states(state, states), filter, items)
    if sharded and not first:
        tree = _shards_only(tree, {path for path, item in items.items() if item.collective}, ()) or {}
    checkpoint = {plain.key(key, ()): plain.value(value, (key,)) for key, value in tree.items()}
    own: dict[str, Any] = {}
    if first or not sharded:
        if precision is not None and (scaling := precision.state_dict()):
            own["precision"] = plain.value(scaling, ("precision",))
        if record is not None:
            own["strategy"] = record
    if own:
        checkpoint[RESERVED_KEY] = own
    plain.finish()
    return checkpoint


def _shards_only(value: Any, kept: set[Path], path: Path) -> Any:
    """What another rank than 0 passes on: its parts of what is set up, and of sharded tensors. None: nothing.

    Plain values are rank 0's, as in a file; on the other ranks they may differ.
    """
    if path in kept:
        return value
    if isinstance(value, Mapping):
        inner = {key: _shards_only(item, kept, (*path, key)) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item is not None} or None
    if isinstance(value, (list, tuple)):
        places = [_shards_only(item, kept, (*path, index)) for index, item in enumerate(value)]
        return places if any(item is not None for item in places) else None
    return value if is_sharded_tensor(value) else None


def _agreed(strategy: Strategy, path: str, items: Mapping[Path, Item]) -> str:
    """Rank 0's path, once it is certain that all ranks are about to save the same objects; a collective."""
    if strategy.world_size == 1:
        return path
    mine = [(item.name, type(item.value).__name__) for item in items.values()]
    path, theirs = strategy.broadcast((path, mine), src=0)

    def compare() -> None:
        if mine != theirs:
            differing = sorted({name for name, _ in set(mine) ^ set(theirs)})
            what = ", ".join(differing) if differing else "the same objects, in another order"
            raise ArgumentValueError(
                f"The state on rank {strategy.global_rank} holds other objects than the one on rank 0: {what}. Every "
                "rank passes the same state. Nothing was written."
            )

    on_all_ranks(strategy, f"saving {path}", compare)
    return path


def check_mapping(state: Any, method: str, kind: type) -> None:
    if state is None and method == "load":
        return
    if not isinstance(state, kind):
        hint = (
            f" To restore one object from its own file, use load_raw(path, {type(state).__name__.lower()})."
            if (method == "load" and isinstance(state, (nn.Module, Optimizer)))
            else f' Write {method}(path, {{"model": model, ...}}).'
        )
        raise ArgumentTypeError(f"The state is a dictionary, and this is a {type(state).__name__}.{hint}")


def is_sharded(strategy: Strategy) -> bool:
    return strategy.checkpoint_io is not None and strategy.checkpoint_io.sharded
