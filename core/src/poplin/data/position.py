"""How a pass over a dataloader that was cut off is taken up again, at the very batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from poplin.data.dealing import draws_only_from_torch
from poplin.data.generators import (
    IsolatedRng,
    generator_state,
    held_generators,
    set_generator_state,
)
from poplin.data.loaders import copy_with, index_slot, is_iterable, samplers
from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.seed import GlobalStates, from_portable, global_rng_states, portable, set_global_rng_states

VERSION = 1


class Position:
    """A place in a pass: the epoch, the number of batches delivered, and how the pass began."""

    __slots__ = ("delivered", "epoch", "start")

    def __init__(self, epoch: int, delivered: int, start: dict[str, Any]) -> None:
        self.epoch = epoch
        self.delivered = delivered
        self.start = start


# --- how a pass begins


def capture_start(loader: Any, sharded: bool, world_size: int) -> dict[str, Any]:
    """The states by which the sampler's order can be had again.

    Args:
        loader: the dataloader that is about to be iterated.
        sharded: whether its samplers run under states of their own, so that the program's don't matter.
        world_size: over how many processes the data is split.
    """
    chain = samplers(loader)
    start: dict[str, Any] = {
        # An iterator whose workers live on draws no new base seed before the sampler draws.
        "workers_live": loader.num_workers > 0 and loader.persistent_workers and loader._iterator is not None,
        "generators": [generator_state(generator) for generator in _generators(loader, chain, world_size)],
        "samplers": [sampler.state_dict() for sampler in chain if _has_order_state(sampler)],
    }
    if not sharded:
        start["rng"] = _states_for(loader)
    return start


def _states_for(loader: Any) -> GlobalStates:
    if draws_only_from_torch(getattr(loader, index_slot(loader))):
        return torch.get_rng_state(), None, None  # a fraction of the cost of all three
    return global_rng_states()


def restore_start(loader: Any, start: dict[str, Any], world_size: int) -> None:
    """Put generators and samplers back to where the pass began."""
    chain = samplers(loader)
    generators = _generators(loader, chain, world_size)
    for generator, state in zip(generators, start.get("generators", ()), strict=False):
        set_generator_state(generator, state)
    with_state = [sampler for sampler in chain if _has_order_state(sampler)]
    for sampler, state in zip(with_state, start.get("samplers", ()), strict=False):
        sampler.load_state_dict(state)


def _generators(loader: Any, chain: list[Any], world_size: int) -> list[Any]:
    """Those that the order depends on.

    A loader's own one also gives its workers their base seed. Of several processes each has its own there, and the
    state that is saved is that of one.
    """
    return held_generators([loader, *chain] if world_size == 1 else chain)


def _has_order_state(sampler: Any) -> bool:
    """Whether the sampler's order is in its state. That of a DistributedSampler is in its seed and epoch."""
    return _has_state(sampler) and not isinstance(sampler, DistributedSampler)


def rewind_for(loader: Any, start: dict[str, Any], world_size: int) -> Callable[[], None] | None:
    """What undoes, right before the sampler draws, the drawing of a base seed for new workers; None if not needed."""
    if not start.get("workers_live"):
        return None

    def rewind() -> None:
        if start.get("rng") is not None:
            set_global_rng_states(start["rng"])
        restore_start(loader, start, world_size)

    return rewind


def _has_state(obj: Any) -> bool:
    return callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))


def dataset_has_state(loader: Any) -> bool:
    """Whether the dataset knows by itself how far it was read. In workers it lives where nobody can ask it."""
    return _has_state(loader.dataset) and not (is_iterable(loader) and loader.num_workers > 0)


# --- iterators that begin in the middle


class _Rest:
    """A sampler without its first items, which are drawn as they were the first time."""

    def __init__(self, source: Iterable[Any], skip: int, rng: IsolatedRng, rewind: Callable[[], None] | None) -> None:
        self._source = source
        self._rewind = rewind
        self._skip = skip
        self._rng = rng

    def __iter__(self) -> Iterator[Any]:
        with self._rng:
            if self._rewind is not None:
                self._rewind()
            iterator = iter(self._source)
            head = list(islice(iterator, self._skip + 1))
        yield from head[self._skip :]
        yield from iterator

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)


def begin_by_sampler(
    loader: Any, delivered: int, start: dict[str, Any], each_is_delivered: bool, rewind: Callable[[], None] | None
) -> Iterator[Any]:
    """An iterator of ``loader`` without the first ``delivered`` batches; the program's generators stay as they are.

    Args:
        loader: a dataloader over a dataset that is indexed.
        delivered: how many batches to leave out.
        start: how the pass began.
        each_is_delivered: whether each item of the sampler is a batch: then no batch is loaded for nothing.
        rewind: what :func:`rewind_for` returned.
    """
    rng = IsolatedRng(start.get("rng"))
    slot = index_slot(loader)
    rest = _Rest(getattr(loader, slot), delivered if each_is_delivered else 0, rng, rewind)
    twin = copy_with(loader, {slot: rest})
    with rng:
        return _without(iter(twin), 0 if each_is_delivered else delivered)


def begin_isolated(source: Iterable[Any], start: dict[str, Any], discarded: int = 0) -> Iterator[Any]:
    """An iterator of ``source``; making it, and throwing its first batches away, leaves the generators as they are."""
    with IsolatedRng(start.get("rng")):
        return _without(iter(source), discarded)


def _without(iterator: Iterator[Any], discarded: int) -> Iterator[Any]:
    for _ in islice(iterator, discarded):
        pass
    return iterator


# --- as a state dict


def pack(position: Position, finished: bool, *, seed: int | None, world_size: int, loader: Any) -> dict[str, Any]:
    """Tensors and plain values, which a safe load accepts."""
    start = dict(position.start)
    if start.get("rng") is not None:
        start["rng"] = portable(start["rng"])
    state = {
        "version": VERSION,
        "epoch": position.epoch,
        "position": position.delivered,
        "finished": finished,
        "world_size": world_size,
        "batch_size": _batch_size(loader),
        "seed": seed,
        "start": start,
    }
    if dataset_has_state(loader):
        state["dataset"] = loader.dataset.state_dict()
    return state


def unpack(state: Any, *, world_size: int, loader: Any) -> Position | None:
    """The position in ``state``, or None where its pass had ended.

    Raises:
        ArgumentTypeError: ``state`` is no dictionary.
        ArgumentValueError: it is no state of a dataloader, or of another number of processes that doesn't fit.
    """
    if not isinstance(state, dict):
        raise ArgumentTypeError(f"The state of a dataloader is a dictionary, and this is a {type(state).__name__}.")
    missing = [key for key in ("version", "epoch", "position", "finished", "world_size", "start") if key not in state]
    if missing or state["version"] != VERSION:
        what = f"it has no {', '.join(map(repr, missing))}" if missing else f"its version is {state['version']!r}"
        raise ArgumentValueError(
            f"This is no state that this version of Poplin can give to a dataloader: {what}. Load what "
            "`state_dict()` of a set-up dataloader returned."
        )
    if state["finished"]:
        return None
    delivered = state["position"]
    if state["world_size"] != world_size or state.get("batch_size") != _batch_size(loader):
        delivered = _converted(state, world_size, _batch_size(loader))
    start = dict(state["start"])
    if start.get("rng") is not None:
        start["rng"] = from_portable(start["rng"])
    return Position(state["epoch"], delivered, start)


def _converted(state: dict[str, Any], world_size: int, batch_size: int | None) -> int:
    """The same number of samples, counted in this run's batches."""
    before = state["position"] * state["world_size"] * (state.get("batch_size") or 1)
    each = world_size * (batch_size or 1)
    if before % each:
        raise ArgumentValueError(
            f"The dataloader had delivered {state['position']} batches of {state.get('batch_size')} on each of "
            f"{state['world_size']} processes; {world_size} processes with batches of {batch_size} can't begin at that "
            "sample. Resume with the same numbers, or from the end of an epoch."
        )
    return int(before // each)


def _batch_size(loader: Any) -> int | None:
    size = loader.batch_sampler.batch_size if isinstance(loader.batch_sampler, BatchSampler) else loader.batch_size
    return None if size is None else int(size)
