"""Samplers that give each rank its part of the one order that a user's sampler defines.

Every rank reads the user's own sampler, under random-number states that are the same on all ranks, and keeps what is
its. Nothing of the user's is rebuilt. A round is one item for each rank; the last round may be partial, and what
happens to it is ``uneven``: "pad" gives the ranks that would go without an item from the beginning again (as torch's
DistributedSampler does), "drop" leaves the round out, "exact" gives ranks different numbers of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from poplin.data.generators import IsolatedRng, mixed_seed
from poplin.data.iteration import Iteration

#: How many indices, or batches, of an unknown sampler are read at once, so that generators are exchanged seldom.
_INDICES_AHEAD = 1024
_BATCHES_AHEAD = 64
#: They use no generator.
_ORDERED = (SequentialSampler, list, tuple, range)
#: They use a generator only while their whole order is made. Reading them whole keeps a generator of their own the
#: same on all ranks even where ranks stop early at different places.
_SHUFFLED = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def rounds(source: Iterable[Any], size: int, seed: int, ahead: int = _INDICES_AHEAD) -> Iterator[list[Any]]:
    """The items of ``source`` in lists of ``size``; only the last may be shorter.

    Args:
        source: a sampler.
        size: of a round.
        seed: of the global generators while the code of ``source`` runs.
        ahead: about how many items of a source of unknown kind are read at once.
    """
    if type(source) in _ORDERED:
        iterator = iter(source)
        while items := list(islice(iterator, size)):
            yield items
        return
    rng = IsolatedRng(seed=seed)
    at_once = None if type(source) in _SHUFFLED else max(ahead // size, 1) * size
    with rng:
        iterator = iter(source)
    while True:
        with rng:
            items = list(islice(iterator, at_once))
        for place in range(0, len(items), size):
            yield items[place : place + size]
        if at_once is None or len(items) < at_once:
            return


def deal(
    source: Iterable[Any],
    *,
    rank: int,
    world_size: int,
    uneven: str,
    seed: int,
    iteration: Iteration,
    per_batch: int = 1,
    padded_samples: int | None = None,
    ahead: int = _INDICES_AHEAD,
    skipping: bool = True,
) -> Iterator[Any]:
    """This rank's items of ``source``; where they are padded is written into ``iteration``.

    Args:
        source: a sampler, the same on all ranks.
        rank: this process's part of the data.
        world_size: number of parts.
        uneven: "pad", "drop" or "exact".
        seed: as in :func:`rounds`.
        iteration: the pass this is for; ``iteration.skip`` batches are left out.
        per_batch: how many items make a batch.
        padded_samples: what one padded item is in ``Iteration.padded_samples``.
        ahead: as in :func:`rounds`.
        skipping: whether ``iteration.skip`` is left out here.
    """
    if iteration.rewind is not None:
        iteration.rewind()
    first: list[Any] = []
    skip = iteration.skip * per_batch if skipping else 0
    for place, items in enumerate(rounds(source, world_size, seed, ahead)):
        iteration.started = True
        if place == 0:
            first = items
        if rank < len(items):
            item = items[rank]
            if len(items) < world_size:
                if uneven == "drop":
                    return
                if uneven == "exact" and (place == 0 or per_batch == 1):
                    iteration.lonely_batch = place
        elif uneven == "pad":
            item = first[(rank - len(items)) % len(first)]
            iteration.padded_batch = place // per_batch
            iteration.padded_samples = padded_samples
        else:
            iteration.short = uneven == "exact"
            return
        if place >= skip:
            yield item
    iteration.started = True


def dealt_length(total: int, rank: int, world_size: int, uneven: str) -> int:
    """How many of ``total`` items :func:`deal` gives to ``rank``."""
    if uneven == "drop":
        return total // world_size
    if uneven == "pad":
        return -(-total // world_size)
    return (total - rank + world_size - 1) // world_size


class _Sharded:
    """What the two samplers share. Attributes that are not its own are those of the user's sampler, both ways."""

    _own = frozenset(
        {
            "_batching",
            "_pending",
            "_source",
            "epoch",
            "epoch_was_set",
            "num_replicas",
            "rank",
            "seed",
            "uneven",
        }
    )

    _source: Any

    def __init__(self, source: Any, *, rank: int, world_size: int, uneven: str, seed: int) -> None:
        self._source = source
        self.rank = rank
        self.num_replicas = world_size
        self.uneven = uneven
        self.seed = seed
        self.epoch = 0
        #: Whether the user has set the epoch since the last pass began.
        self.epoch_was_set = False
        self._pending: Iteration | None = None

    def expect(self, iteration: Iteration) -> None:
        """The next reading of this sampler belongs to ``iteration``."""
        self._pending = iteration
        self.epoch = iteration.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be the one number ``epoch``: another number is another shuffle, the same the same."""
        self.epoch = epoch
        self.epoch_was_set = True

    def expected(self) -> Iteration:
        """The pass that a reading which begins now belongs to.

        A dataloader with workers asks for two iterators and uses the second: the one that is read first counts.
        """
        iteration = self._pending
        return Iteration(self.epoch) if iteration is None or iteration.started else iteration

    def _deal(
        self,
        per_batch: int,
        padded_samples: int | None,
        ahead: int,
        iteration: Iteration | None = None,
        skipping: bool = True,
    ) -> Iterator[Any]:
        if iteration is None:
            iteration = self.expected()
        yield from deal(
            self._source,
            rank=self.rank,
            world_size=self.num_replicas,
            uneven=self.uneven,
            seed=mixed_seed(self.seed, iteration.epoch),
            iteration=iteration,
            per_batch=per_batch,
            padded_samples=padded_samples,
            ahead=ahead,
            skipping=skipping,
        )

    def __len__(self) -> int:
        return dealt_length(len(self._source), self.rank, self.num_replicas, self.uneven)

    def __getattr__(self, name: str) -> Any:
        # The user's sampler is read ahead of what is delivered: its state would be that of another moment.
        if name in _Sharded._own or name in ("state_dict", "load_state_dict") or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._source, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _Sharded._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self._source, name, value)


class ShardedSampler(_Sharded, DistributedSampler[Any]):
    """This rank's indices of a user's sampler. A DistributedSampler to whoever asks.

    Args:
        source: the user's sampler.
        rank: this process's part of the data.
        world_size: number of parts.
        uneven: "pad", "drop" or "exact"; see the module.
        seed: the same on all ranks; with the epoch it decides what ``source`` draws.
        batching: the batch sampler that reads this one, or None where each item is a batch.
    """

    def __init__(
        self, source: Any, *, rank: int, world_size: int, uneven: str, seed: int, batching: BatchSampler | None = None
    ) -> None:
        _Sharded.__init__(self, source, rank=rank, world_size=world_size, uneven=uneven, seed=seed)
        self._batching = batching

    def __iter__(self) -> Iterator[Any]:
        if self._batching is None:
            return self._deal(1, None, _INDICES_AHEAD)
        return self._deal(self._batching.batch_size, 1, _INDICES_AHEAD)

    def read(self, iteration: Iteration) -> Iterator[Any]:
        """The indices of a pass, from its very beginning."""
        return self._deal(
            self._batching.batch_size if self._batching is not None else 1, 1, _INDICES_AHEAD, iteration, False
        )

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """How many indices this rank gets."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """How many indices all ranks get together."""
        return sum(
            dealt_length(len(self._source), rank, self.num_replicas, self.uneven) for rank in range(self.num_replicas)
        )

    @property
    def longest(self) -> int:
        """How many indices the rank that has most gets."""
        return dealt_length(len(self._source), 0, self.num_replicas, self.uneven)

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """Whether the last partial round is left out."""
        return self.uneven == "drop"

    @property
    def shuffle(self) -> bool:  # type: ignore[override]
        """Whether the user's sampler is anything but sequential."""
        return type(self._source) not in _ORDERED

    @property
    def dataset(self) -> Any:  # type: ignore[override]
        """What the user's sampler samples from, if it says; else the sampler itself."""
        return getattr(self._source, "data_source", self._source)


class EvenBatchSampler(BatchSampler):
    """A BatchSampler over a ShardedSampler with ``uneven="exact"``: on each rank the same number of batches.

    Where another rank has one index more, and would need one batch more for it, this one gives the last index of its
    last batch as a batch of its own. (Not with batches of one, nor where this rank has no index at all.)
    """

    sampler: ShardedSampler

    @classmethod
    def like(cls, source: BatchSampler, indices: ShardedSampler) -> EvenBatchSampler:
        """Batches as those of ``source``, from ``indices``."""
        batches = cls(indices, source.batch_size, source.drop_last)
        batches.__dict__.update({**source.__dict__, "sampler": indices})
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        iteration = self.sampler.expected()
        for place, batch in enumerate(self._batches(self.sampler.read(iteration), iteration)):
            if place >= iteration.skip:
                yield batch

    def _batches(self, indices: Iterator[int], iteration: Iteration) -> Iterator[list[int]]:
        batch = list(islice(indices, self.batch_size))
        while batch:
            following = list(islice(indices, self.batch_size))
            full = len(batch) == self.batch_size
            if full and not following and iteration.short and not self.drop_last and len(batch) > 1:
                yield batch[:-1]
                yield batch[-1:]
            elif full or not self.drop_last:
                yield batch
            batch = following

    def __len__(self) -> int:
        mine = len(self.sampler)
        if self.drop_last:
            return mine // self.batch_size
        if self.batch_size == 1 or mine == 0:
            return mine
        return -(-self.sampler.longest // self.batch_size)


class ShardedBatchSampler(_Sharded, Sampler[Any]):
    """This rank's batches of a user's batch sampler, whole ones, dealt in turn.

    Args:
        source: the user's batch sampler.
        rank, world_size, uneven, seed: as for :class:`ShardedSampler`.
    """

    def __init__(self, source: Any, *, rank: int, world_size: int, uneven: str, seed: int) -> None:
        _Sharded.__init__(self, source, rank=rank, world_size=world_size, uneven=uneven, seed=seed)

    def __iter__(self) -> Iterator[Any]:
        return self._deal(1, None, _BATCHES_AHEAD)


def draws_only_from_torch(source: Any) -> bool:
    """Whether a sampler is one of torch's own, of which we know that no generator but torch's is used."""
    if type(source) is BatchSampler:
        return draws_only_from_torch(source.sampler)
    return type(source) in (*_ORDERED, *_SHUFFLED)
