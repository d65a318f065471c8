"""The set-up dataloader: the user's own to whoever looks, with each rank's part of the data, moved to the device."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from poplin.errors import ArgumentTypeError
from poplin.utilities.apply_func import mover

Move = Callable[[Any], Any]

_FIELDS = ("_fabric_device", "_fabric_feed", "_fabric_loader", "_fabric_move", "_fabric_original")
#: Counts deliveries over all loaders of this process: the last one is the batch at hand.
_ticks = itertools.count(1)


class IterationLike(Protocol):
    """What the wrapper tells of a pass."""

    delivered: int
    stamp: int


class FeedLike(Protocol):
    """What is behind a set-up dataloader; see :class:`poplin.data.feed.Feed`."""

    def begin(self) -> tuple[Iterator[Any], Any]:
        """Begin a pass."""

    def check_first(self, iteration: Any) -> None:
        """A first batch is there."""

    def finish(self, iteration: Any) -> None:
        """The pass is over."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next pass."""

    def state_dict(self) -> dict[str, Any]:
        """Where the last pass is."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on from there."""


class Delivery:
    """One pass: an iterator that counts what it hands out and moves it to the device."""

    __slots__ = ("__weakref__", "_feed", "_iteration", "_iterator", "_move", "_next")

    def __init__(self, feed: FeedLike, move: Move | None) -> None:
        self._feed = feed
        self._move = move
        self._iterator, self._iteration = feed.begin()
        self._next: Callable[[], Any] | None = None  # a method of its own would be a circle that outlives its user

    def __iter__(self) -> Delivery:
        return self

    def __next__(self) -> Any:
        try:
            batch = self._first() if self._next is None else self._next()
        except StopIteration:
            self._feed.finish(self._iteration)
            raise
        if self._move is not None:
            batch = self._move(batch)
        iteration = self._iteration
        iteration.delivered += 1
        iteration.stamp = next(_ticks)
        return batch

    def _first(self) -> Any:
        batch = next(self._iterator)
        self._next = self._iterator.__next__
        self._feed.check_first(self._iteration)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in Delivery.__slots__:
            raise AttributeError(name)
        return getattr(self._iterator, name)


class FabricDataLoader:
    """A set-up dataloader, made by ``Fabric.setup_dataloaders`` only.

    It is an instance of the user's class, too, and its attributes are those of the user's dataloader. Iterating it
    gives this rank's batches, on the device. ``state_dict`` and ``load_state_dict`` are the user's own where the
    dataloader has them; otherwise they keep its place, counted in batches that were delivered.
    """

    #: In a checkpoint each rank has a state of its own: a generator of the user's may differ by rank.
    per_rank_state = True

    __slots__ = ()  # the fields are slots of the subclasses: those of two bases could not be combined

    _fabric_device: torch.device | None
    _fabric_feed: FeedLike
    _fabric_loader: Any
    _fabric_move: Move | None
    _fabric_original: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> FabricDataLoader:
        raise ArgumentTypeError(
            "A FabricDataLoader is made by Fabric.setup_dataloaders(dataloader), which knows strategy and device."
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass  # the user's class may keep a register of its subclasses, and ours has no place in it

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be number ``epoch``: samplers and datasets with ``set_epoch`` get it when it begins."""
        self._fabric_feed.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the last pass is; what :meth:`load_state_dict` takes."""
        return self._fabric_feed.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass begin where the state was taken; after the end of an epoch it is a whole one."""
        self._fabric_feed.load_state_dict(state_dict)

    def load_per_rank_states(self, states: Sequence[dict[str, Any]], rank: int, world_size: int) -> None:
        """Go on where another number of ranks was. Called by ``Fabric.load`` where that has changed."""
        self.load_state_dict(states[rank if rank < len(states) else 0])

    def __iter__(self) -> Iterator[Any]:
        return Delivery(self._fabric_feed, self._fabric_move)

    def __len__(self) -> int:
        return len(self._fabric_loader)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIELDS:
            object.__setattr__(self, name, value)
            return
        setattr(self._fabric_loader, name, value)  # shares its attributes with this object
        if self._fabric_original is not self._fabric_loader:
            setattr(self._fabric_original, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._fabric_loader, name)
        if self._fabric_original is not self._fabric_loader and hasattr(self._fabric_original, name):
            delattr(self._fabric_original, name)

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # whatever isn't in the shared attributes: what the class itself looks up, what came to the original later, ...
        for loader in (self._fabric_loader, self._fabric_original):
            try:
                return getattr(loader, name)
            except AttributeError:
                pass
        if name == "device":  # ... and two names that users of Lightning know
            return self._fabric_device
        if name == "_dataloader":
            return self._fabric_original
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt, (self._fabric_loader, self._fabric_original, self._fabric_feed, self._fabric_device)

    def __copy__(self) -> Any:
        return wrap(
            self._fabric_loader,
            original=self._fabric_original,
            feed=self._fabric_feed,
            move=self._fabric_move,
            device=self._fabric_device,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        loader, original, feed = copy.deepcopy((self._fabric_loader, self._fabric_original, self._fabric_feed), memo)
        return wrap(loader, original=original, feed=feed, move=self._fabric_move, device=self._fabric_device)


def wrap(loader: Any, *, original: Any, feed: FeedLike, move: Move | None, device: torch.device | None) -> Any:
    """The set-up form of ``loader``, sharing its ``__dict__``.

    Args:
        loader: the user's dataloader, or the copy of it that has the sharding samplers.
        original: the user's dataloader.
        feed: begins passes over ``loader``.
        move: moves a batch; None leaves batches as they are.
        device: where to.
    """
    kind: Any = type(loader)
    wrapped: Any = object.__new__(_class_for(kind))
    object.__setattr__(wrapped, "__dict__", loader.__dict__)
    wrapped._fabric_loader = loader
    wrapped._fabric_original = original
    wrapped._fabric_feed = feed
    wrapped._fabric_move = move
    wrapped._fabric_device = device
    return wrapped


@functools.cache
def _class_for(kind: Any) -> Any:
    """A subclass of the user's class with this module's behaviour; one for each class."""
    names = {
        "__slots__": _FIELDS,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind)(kind.__name__, (FabricDataLoader, kind), names)


def _rebuilt(loader: Any, original: Any, feed: FeedLike, device: torch.device | None) -> Any:
    move = None if device is None else mover(device)
    return wrap(loader, original=original, feed=feed, move=move, device=device)
