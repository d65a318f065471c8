"""What ``Fabric.setup_dataloaders`` does with a dataloader."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader

from poplin.data.feed import Feed, Sharded
from poplin.data.generators import generator_state, held_generators, set_generator_state
from poplin.data.iterable import ShardedIterable, splits_over_ranks, splits_over_workers
from poplin.data.loaders import copy_with, distributed_sampler, index_slot, is_iterable, samplers
from poplin.data.sharding import BatchesOfShard, ShardedBatchSampler, ShardedSampler
from poplin.data.workers import WorkerStart
from poplin.errors import AlreadySetUpError, ArgumentTypeError, ArgumentValueError, PossibleUserWarning
from poplin.rank_zero import rank_zero_warn
from poplin.strategies.strategy import Strategy
from poplin.utilities.apply_func import mover
from poplin.wrappers.dataloader import FabricDataLoader, Move, wrap

UNEVEN = ("pad", "drop", "exact")


class TraceLike(Protocol):
    """What a decision is written into."""

    def note(self, subject: str, choice: Any, reason: str = "", provider: Any = None, passed_over: Any = ()) -> None:
        """Record a decision."""


class _Prepared(NamedTuple):
    """A dataloader of which it is known that it can be set up."""

    own: Any
    plan: _Plan


class _Plan(NamedTuple):
    """How a dataloader is split: what replaces its parts, what does the splitting, and why."""

    replaced: dict[str, Any]
    sharded: Sharded | None
    choice: str
    reason: str


def setup_dataloaders(
    loaders: Sequence[Any],
    *,
    strategy: Any,
    use_distributed_sampler: bool = True,
    move_to_device: bool = True,
    uneven: str = "pad",
    shard_iterable: bool = False,
    trace: TraceLike | None = None,
) -> list[Any]:
    """Split, seed and wrap dataloaders. A collective where the data is split: every rank calls it.

    Args:
        loaders: DataLoaders of any class. They stay as they are, their samplers are used and never rebuilt.
        strategy: says which part of the data this process gets, and moves batches.
        use_distributed_sampler: whether to split the data over ranks. What splits itself is left as it is.
        move_to_device: whether batches are moved to the strategy's device.
        uneven: what happens to samples that don't divide evenly: "pad" repeats some, "drop" leaves some out, "exact"
            gives ranks different numbers.
        shard_iterable: whether an IterableDataset is split too.
        trace: where the decision is recorded.

    Returns:
        A :class:`FabricDataLoader` for each, which is an instance of the loader's own class too.

    Raises:
        ArgumentTypeError: not a DataLoader.
        ArgumentValueError: an unknown ``uneven``; a dataloader whose samplers can't be replaced.
        AlreadySetUpError: it was set up before.
    """
    for loader in loaders:
        _check(loader, uneven)
    rank, world_size = int(strategy.data_rank), int(strategy.data_world_size)
    options = (rank, world_size, uneven, use_distributed_sampler, shard_iterable)
    prepared = [_prepare(loader, *options) for loader in loaders]  # what can be refused has been, from here on
    for own, plan in prepared:
        if plan.sharded is not None:
            _agree_on_order(own, plan.sharded, strategy)
    move, device = _movement(strategy, move_to_device)
    wrapped = []
    for loader, (own, plan) in zip(loaders, prepared, strict=True):
        if trace is not None:
            trace.note("sampler", plan.choice, plan.reason)
        source = strategy.process_dataloader(own)
        feed = Feed(own, source, plan.sharded, rank=rank, world_size=world_size, uneven=uneven)
        _warn(own, feed, plan)
        wrapped.append(wrap(own, original=loader, feed=feed, move=move, device=device))
    return wrapped


def setup_dataloader(loader: Any, *, strategy: Any, **options: Any) -> Any:
    """:func:`setup_dataloaders` of one."""
    return setup_dataloaders([loader], strategy=strategy, **options)[0]


def _prepare(loader: Any, rank: int, *options: Any) -> _Prepared:
    plan = _plan(loader, rank, *options)
    replaced = dict(plan.replaced)
    if loader.num_workers > 0:
        replaced["worker_init_fn"] = WorkerStart(loader.worker_init_fn, rank)
    return _Prepared(_with_parts(loader, replaced) if replaced else loader, plan)


def _check(loader: Any, uneven: str) -> None:
    if isinstance(loader, FabricDataLoader):
        raise AlreadySetUpError("This dataloader is set up already: pass the original to setup_dataloaders(), once.")
    if not isinstance(loader, DataLoader):
        raise ArgumentTypeError(
            f"setup_dataloaders() takes torch.utils.data.DataLoader objects, and got a {type(loader).__name__}. "
            "Anything else that can be iterated needs no setup: split it by fabric.global_rank, and move its batches "
            "with fabric.to_device(batch)."
        )
    if uneven not in UNEVEN:
        raise ArgumentValueError(f"uneven={uneven!r}: choose one of {', '.join(map(repr, UNEVEN))}.")


# --- the decision


def _plan(
    loader: DataLoader[Any],
    rank: int,
    world_size: int,
    uneven: str,
    use_distributed_sampler: bool,
    shard_iterable: bool,
) -> _Plan:
    name = type(loader.dataset).__name__ if is_iterable(loader) else _sampler_name(loader)
    as_it_is = functools.partial(_Plan, {}, None, f"{name} as it is")
    parts: dict[str, Any] = {"rank": rank, "world_size": world_size, "uneven": uneven, "seed": 0}
    if world_size == 1:
        if is_iterable(loader) and shard_iterable and loader.num_workers > 1:
            return _plan_iterable(loader, {**parts, "uneven": "exact"}, name)  # no other process waits for this one
        return as_it_is("one process gets all of the data")
    if not use_distributed_sampler:
        return as_it_is("use_distributed_sampler=False: every process gets all of the data")
    if is_iterable(loader):
        if not shard_iterable:
            return as_it_is("an IterableDataset is split only with shard_iterable=True")
        return _plan_iterable(loader, parts, name)
    if (theirs := distributed_sampler(loader)) is not None:
        _check_parts(theirs, rank, world_size)
        return as_it_is(f"{type(theirs).__name__} splits the data over ranks by itself")
    slot = index_slot(loader)
    source = getattr(loader, slot)
    split = f"{name} split over {world_size} processes"
    if type(source) is BatchSampler:  # torch's own: the indices are split, so that batches keep their size
        indices = ShardedSampler(source.sampler, batched=True, **parts)
        batches = BatchesOfShard.like(source, indices)
        replaced = {slot: batches} if slot == "sampler" else {slot: batches, "sampler": indices}
        return _Plan(replaced, indices, split, f"each gets one of every {world_size} indices")
    if slot == "batch_sampler":
        sharded = ShardedBatchSampler(source, **parts)
        return _Plan({slot: sharded}, sharded, split, f"each gets one of every {world_size} batches, whole")
    items = ShardedSampler(source, **parts)
    return _Plan({slot: items}, items, split, f"each gets one of every {world_size} items (batch_size=None)")


def _plan_iterable(loader: DataLoader[Any], parts: dict[str, Any], name: str) -> _Plan:
    itself = loader.num_workers > 0 and splits_over_workers(loader.dataset, loader.worker_init_fn)
    dataset = ShardedIterable(loader.dataset, num_workers=loader.num_workers, splits_itself=itself, **parts)
    reason = "shard_iterable=True: each process, and each of its workers, reads all of it and keeps its samples"
    if itself:
        reason += "; over workers the dataset splits itself (it looks at get_worker_info)"
    return _Plan({"dataset": dataset}, dataset, f"{name} split over {parts['world_size']} processes", reason)


def _sampler_name(loader: DataLoader[Any]) -> str:
    source = getattr(loader, index_slot(loader))
    return type(source.sampler if type(source) is BatchSampler else source).__name__


def _check_parts(sampler: Any, rank: int, world_size: int) -> None:
    """A sampler of the user's that splits by other numbers than the strategy's is probably a mistake."""
    size = getattr(sampler, "num_replicas", getattr(sampler, "world_size", None))
    if isinstance(size, int) and (size != world_size or getattr(sampler, "rank", rank) != rank):
        rank_zero_warn(
            f"The {type(sampler).__name__} of a dataloader is part {getattr(sampler, 'rank', '?')} of {size}, and the "
            f"strategy splits the data into {world_size}, of which this process has {rank}. It is left as it is; give "
            "it the strategy's `data_world_size` and `data_rank` if that is not what you want.",
            category=PossibleUserWarning,
        )


def _with_parts(loader: Any, replaced: dict[str, Any]) -> Any:
    twin = copy_with(loader, replaced)
    for name, part in replaced.items():
        if getattr(twin, name) is not part:
            raise ArgumentValueError(
                f"{type(loader).__name__} has a `{name}` of its own (a property of the class) that can't be replaced, "
                "so its data can't be split. Split it yourself and pass use_distributed_sampler=False."
            )
    return twin


def _agree_on_order(loader: Any, sharded: Sharded, strategy: Any) -> None:
    """One seed, and one state of each generator that a sampler holds, for all ranks: those of rank 0."""
    held = held_generators(samplers(loader))
    mine = {
        "seed": int(torch.empty((), dtype=torch.int64).random_().item()),
        "generators": [generator_state(generator) for generator in held],
    }
    common = strategy.broadcast(mine, src=0)
    sharded.seed = common["seed"]
    for generator, state in zip(held, common["generators"], strict=False):
        set_generator_state(generator, state)
    start = loader.worker_init_fn
    if isinstance(start, WorkerStart) and any(loader.generator is generator for generator in held):
        start.mix_rank = True  # the workers' base seed comes from it too, and is the same on all ranks now


# --- batches and warnings


def _movement(strategy: Any, move_to_device: bool) -> tuple[Move | None, torch.device | None]:
    if not move_to_device or strategy.owns_data_movement:
        return None, None
    device: torch.device = strategy.root_device
    if getattr(type(strategy), "batch_to_device", None) is Strategy.batch_to_device:
        return mover(device), device
    move: Move = strategy.batch_to_device
    return move, device


def _warn(loader: Any, feed: Feed, plan: _Plan) -> None:
    dataset = loader.dataset
    alone = feed.world_size == 1 or plan.sharded is not None
    if is_iterable(loader) and not alone and "shard_iterable" in plan.reason and not splits_over_ranks(dataset):
        rank_zero_warn(
            f"{type(dataset).__name__} is an IterableDataset: each of the {feed.world_size} processes gets all of its "
            "samples. Pass shard_iterable=True to setup_dataloaders() to split it (or use_distributed_sampler=False if "
            "it splits itself).",
            category=PossibleUserWarning,
        )
    reached = isinstance(plan.sharded, ShardedIterable)
    if loader.num_workers > 0 and loader.persistent_workers and hasattr(dataset, "set_epoch") and not reached:
        rank_zero_warn(
            f"{type(dataset).__name__} has `set_epoch`, and this {type(loader).__name__} keeps its workers alive "
            "(persistent_workers=True): their copies of the dataset stay at the epoch in which they started. Use "
            "persistent_workers=False, or keep the epoch in shared memory.",
            category=PossibleUserWarning,
        )
    if is_iterable(loader):
        return  # torch remembers that the length was asked for, and warns where it turns out wrong
    try:
        length = len(loader)
    except Exception:  # not every sampler can tell, and a length that raises is not ours to report
        return
    if length == 0:
        feed.warn_empty()
