"""A set-up dataloader's inside: passes over it, their epochs and positions, and what of a batch is padding."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from poplin.data.iterable import ShardedIterable
from poplin.data.iteration import Iteration
from poplin.data.loaders import (
    distributed_sampler,
    is_iterable,
    iterates_as_torch,
    padding_of_distributed_sampler,
    samplers,
)
from poplin.data.position import (
    Position,
    begin_by_sampler,
    begin_isolated,
    capture_start,
    dataset_has_state,
    pack,
    restore_start,
    rewind_for,
    unpack,
)
from poplin.data.sharding import ShardedBatchSampler, ShardedSampler
from poplin.errors import PossibleUserWarning

Sharded = ShardedSampler | ShardedBatchSampler | ShardedIterable


class Feed:
    """Begins passes over a dataloader and knows where they are.

    Args:
        loader: the dataloader, with whatever shards it in place.
        source: what is iterated: ``loader``, or what the strategy made of it.
        sharded: what shards it, or None.
        rank: which part of the data this process gets.
        world_size: over how many parts the data is split.
        uneven: how; see :mod:`poplin.data.sharding`.
    """

    def __init__(
        self, loader: Any, source: Any, sharded: Sharded | None, *, rank: int, world_size: int, uneven: str
    ) -> None:
        self.loader = loader
        self.source = source
        self.sharded = sharded
        self.rank = rank
        self.world_size = world_size
        self.uneven = uneven
        self.current: Iteration | None = None
        self._epoch = 0  # of the next pass
        self._resume: Position | None = None
        self._start: dict[str, Any] | None = None  # of the next pass, where the loader keeps its place itself
        self._pushed = {id(target): getattr(target, "epoch", None) for target in self._samplers_with_epoch()}
        self._said: set[str] = set()
        split = sharded is not None or distributed_sampler(loader) is not None
        #: Over how many processes a position counts.
        self._parts = world_size if split else 1

    # --- a pass

    def begin(self) -> tuple[Iterator[Any], Iteration]:
        """Begin the next pass. What raises leaves everything as it was."""
        epoch, chosen = self._next_epoch()
        resume = self._resume
        if resume is not None and chosen and resume.epoch != epoch:
            resume = None  # the user went on to another epoch
        self._push_epoch(epoch)
        iteration = Iteration(epoch)
        iterator = self._fresh(iteration) if resume is None else self._resumed(iteration, resume)
        self._resume = self._start = None
        self._epoch = epoch + 1
        self.current = iteration
        return iterator, iteration

    def _fresh(self, iteration: Iteration) -> Iterator[Any]:
        if self._start is not None:  # the loader finds its own way back, from here
            restore_start(self.loader, self._start, self.world_size)
            iteration.start = self._start
        elif not is_iterable(self.loader) and (self.sharded is not None or not self._is_users_own_state()):
            iteration.start = capture_start(self.loader, self.sharded is not None, self.world_size)
        if self.sharded is not None:
            self.sharded.expect(iteration)
        return iter(self.source)

    def _resumed(self, iteration: Iteration, resume: Position) -> Iterator[Any]:
        restore_start(self.loader, resume.start, self.world_size)
        rewind = rewind_for(self.loader, resume.start, self.world_size)
        iteration.start = resume.start
        by_sampler = iterates_as_torch(self.loader) and not is_iterable(self.loader)
        if self.loader.num_workers > 0 and not getattr(self.loader, "in_order", True):
            self._say("order", "gives batches in any order (in_order=False): which of them are left can't be known.")
        iteration.delivered = resume.delivered
        if self.sharded is not None:
            iteration.skip = resume.delivered if by_sampler else 0
            iteration.rewind = rewind
            self.sharded.expect(iteration)
            return begin_isolated(self.source, resume.start, 0 if by_sampler else resume.delivered)
        if is_iterable(self.loader):
            discarded = 0 if dataset_has_state(self.loader) else resume.delivered
            return begin_isolated(self.source, resume.start, discarded)
        if self.source is self.loader:
            return begin_by_sampler(self.loader, resume.delivered, resume.start, by_sampler, rewind)
        return begin_isolated(self.source, resume.start, resume.delivered)

    def check_first(self, iteration: Iteration) -> None:
        """Called at the first batch of a pass: did the loader ask the sampler that shards it?"""
        if self.sharded is not None and not isinstance(self.sharded, ShardedIterable) and not iteration.started:
            self._say(
                "unasked",
                "gives batches without asking its sampler, so its data is not split: every process gets the same. "
                "Split it yourself and pass use_distributed_sampler=False to setup_dataloaders().",
            )

    def finish(self, iteration: Iteration) -> None:
        """Called when the loader has no more."""
        iteration.finished = True
        if iteration.delivered == 0:
            self.warn_empty()

    def warn_empty(self) -> None:
        """Say, once, that this process gets nothing."""
        text = "gives no batch at all: its dataset is empty, or smaller than a batch with drop_last=True."
        if self.world_size > 1:
            text = (
                f"gives no batch to data rank {self.rank} (of {self.world_size}): its dataset is too small for this "
                "number of processes and this batch size. In a step in which processes wait for each other, the others "
                "would wait for it in vain."
            )
        self._say("empty", text)

    def _say(self, key: str, text: str) -> None:
        if key not in self._said and (self.rank == 0 or key == "empty"):
            self._said.add(key)
            warnings.warn(
                f"The dataloader ({type(self.loader).__name__} over {type(self.loader.dataset).__name__}) {text}",
                PossibleUserWarning,
                stacklevel=2,
            )

    # --- epochs

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be number ``epoch``."""
        if self._resume is not None and self._resume.epoch != epoch:
            self._resume = None
        self._epoch = epoch
        if hasattr(type(self.loader), "set_epoch"):
            self.loader.set_epoch(epoch)

    def _next_epoch(self) -> tuple[int, bool]:
        """The number of the next pass, and whether the user chose it by some sampler's ``set_epoch``."""
        if isinstance(self.sharded, (ShardedSampler, ShardedBatchSampler)) and self.sharded.epoch_was_set:
            self.sharded.epoch_was_set = False
            return self.sharded.epoch, True
        for target in self._samplers_with_epoch():
            epoch = target.epoch
            if isinstance(epoch, int) and epoch != self._pushed.get(id(target), epoch):
                return epoch, True
        return self._epoch, False

    def _push_epoch(self, epoch: int) -> None:
        own = type(self.loader)
        targets = [self.loader] if hasattr(own, "set_epoch") else []
        for target in [*targets, *samplers(self.loader), *_datasets(self.loader.dataset)]:
            if callable(getattr(target, "set_epoch", None)):
                target.set_epoch(epoch)
        self._pushed = {id(target): target.epoch for target in self._samplers_with_epoch()}

    def _samplers_with_epoch(self) -> list[Any]:
        return [
            sampler
            for sampler in samplers(self.loader)
            if callable(getattr(sampler, "set_epoch", None)) and hasattr(sampler, "epoch")
        ]

    # --- positions

    def _is_users_own_state(self) -> bool:
        return callable(getattr(self.loader, "state_dict", None)) and callable(
            getattr(self.loader, "load_state_dict", None)
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the last pass is, counted in what was delivered."""
        if self._is_users_own_state():
            state: dict[str, Any] = self.loader.state_dict()
            if self.sharded is None:
                return state
            current = self.current or Iteration(self._epoch)
            return {"loader": state, "epoch": current.epoch, "seed": self.sharded.seed, "start": current.start}
        if self._resume is not None:
            position, finished = self._resume, False
        elif self.current is None:
            position, finished = Position(self._epoch, 0, {}), False
        else:
            position = Position(self.current.epoch, self.current.delivered, self.current.start)
            finished = self.current.finished
        seed = None if self.sharded is None else self.sharded.seed
        return pack(position, finished, seed=seed, world_size=self._parts, loader=self.loader)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where ``state`` was taken; after the end of an epoch it is a whole one."""
        if self._is_users_own_state():
            if (
                self.sharded is not None
                and isinstance(state, dict)
                and set(state) == {"loader", "epoch", "seed", "start"}
            ):
                self.sharded.seed = state["seed"]
                self._epoch = state["epoch"]
                self._start = state["start"]
                state = state["loader"]
            self.loader.load_state_dict(state)
            return
        resume = unpack(state, world_size=self._parts, loader=self.loader)
        if "dataset" in state and dataset_has_state(self.loader):
            self.loader.dataset.load_state_dict(state["dataset"])
        if self.sharded is not None and state["seed"] is not None:
            self.sharded.seed = state["seed"]
        self._resume = resume
        self._epoch = state["epoch"] + 1 if resume is None else resume.epoch
        self.current = None
        self._pushed = {id(target): target.epoch for target in self._samplers_with_epoch()}

    # --- padding

    def padding(self) -> int | None:
        """How many samples at the end of the batch that was delivered last are repetitions; None means all of it."""
        iteration = self.current
        if iteration is None or iteration.delivered == 0:
            return 0
        place = iteration.delivered - 1
        if self.loader.num_workers > 0 and not getattr(self.loader, "in_order", True):
            self._say("order of padding", "gives batches in any order (in_order=False): metrics count padded samples.")
            return 0
        if isinstance(self.sharded, ShardedIterable):
            return self._padding_of_iterable(self.sharded, place)
        if self.sharded is not None:
            return iteration.padded_samples if iteration.padded_batch == place else 0
        if padding_of_distributed_sampler(self.loader) != place:
            return 0
        return 1 if self.loader.batch_sampler is not None else None

    def is_lonely(self) -> bool:
        """Whether other processes have no batch where this one got its last."""
        iteration = self.current
        if iteration is None or iteration.delivered == 0:
            return False
        place = iteration.delivered - 1
        if isinstance(self.sharded, ShardedIterable):
            workers, size = max(self.loader.num_workers, 1), self.loader.batch_size or 1
            sample = self.sharded.lonely_sample(place % workers)
            return sample >= 0 and sample == place // workers * size
        return iteration.lonely_batch == place

    def _padding_of_iterable(self, sharded: ShardedIterable, place: int) -> int | None:
        workers = max(self.loader.num_workers, 1)
        if sharded.splits_itself and workers > 1 and self.uneven == "pad":
            self._say(
                "unknown padding",
                "splits its data over workers by itself: which samples are repeated at the end can't be known here, "
                "and metrics count them. Use uneven='exact' or uneven='drop'.",
            )
            return 0
        sample = sharded.padded_sample(place % workers)
        size = self.loader.batch_size
        if sample < 0 or sample // (size or 1) != place // workers:
            return 0
        return None if size is None else 1


def _datasets(dataset: Any) -> list[Any]:
    """The dataset and, where it doesn't know epochs itself, what it wraps."""
    found = [dataset]
    while not hasattr(found[-1], "set_epoch") and len(found) < 10:
        inner = getattr(found[-1], "__dict__", {}).get("dataset")
        if inner is None:
            break
        found.append(inner)
    return found
