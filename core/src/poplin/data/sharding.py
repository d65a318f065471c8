"""Samplers that give each rank its part of what a user's sampler yields. Nothing of the user's is rebuilt.

See :mod:`poplin.data.dealing` for how the parts are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, Sampler

from poplin.data.dealing import BATCHES_AHEAD, INDICES_AHEAD, ORDERED, deal, dealt_length
from poplin.data.generators import mixed_seed
from poplin.data.iteration import Iteration


class _Sharded:
    """What the two samplers share. Attributes that are not its own are those of the user's sampler, both ways."""

    _own = frozenset(
        {
            "_batched",
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
        self, iteration: Iteration, ahead: int, *, per_batch: int = 1, padded_samples: int | None = None, skip: int = 0
    ) -> Iterator[Any]:
        return deal(
            self._source,
            rank=self.rank,
            world_size=self.num_replicas,
            uneven=self.uneven,
            seed=mixed_seed(self.seed, iteration.epoch),
            iteration=iteration,
            per_batch=per_batch,
            padded_samples=padded_samples,
            ahead=ahead,
            skip=skip,
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
        batched: whether a :class:`BatchesOfShard` reads this one; else each item is a batch.
    """

    def __init__(
        self, source: Any, *, rank: int, world_size: int, uneven: str, seed: int, batched: bool = False
    ) -> None:
        _Sharded.__init__(self, source, rank=rank, world_size=world_size, uneven=uneven, seed=seed)
        self._batched = batched

    def __iter__(self) -> Iterator[Any]:
        # What reads a batched one directly is not the dataloader.
        iteration = Iteration(self.epoch) if self._batched else self.expected()
        return self._deal(iteration, INDICES_AHEAD, skip=iteration.skip)

    def read(self, iteration: Iteration, per_batch: int) -> Iterator[Any]:
        """The indices of a pass, from its very beginning, for batches of ``per_batch``."""
        return self._deal(iteration, INDICES_AHEAD, per_batch=per_batch, padded_samples=1)

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
        return type(self._source) not in ORDERED

    @property
    def dataset(self) -> Any:  # type: ignore[override]
        """What the user's sampler samples from, if it says; else the sampler itself."""
        return getattr(self._source, "data_source", self._source)


class BatchesOfShard(BatchSampler):
    """torch's BatchSampler over a :class:`ShardedSampler`.

    With ``uneven="exact"`` each rank has the same number of batches: where another rank has one index more, and would
    need one batch more for it, this one gives the last index of its last batch as a batch of its own. (Not with
    batches of one, nor where this rank has no index at all.)
    """

    sampler: ShardedSampler

    @classmethod
    def like(cls, source: BatchSampler, indices: ShardedSampler) -> BatchesOfShard:
        """Batches as those of ``source``, from ``indices``."""
        batches = cls(indices, source.batch_size, source.drop_last)
        batches.__dict__.update({**source.__dict__, "sampler": indices})
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        iteration = self.sampler.expected()  # now, not when the first batch is asked for
        batches = self._batches(self.sampler.read(iteration, self.batch_size), iteration)
        return islice(batches, iteration.skip, None)

    def _batches(self, indices: Iterator[int], iteration: Iteration) -> Iterator[list[int]]:
        batch = list(islice(indices, self.batch_size))
        while batch:
            full = len(batch) == self.batch_size
            # Only an exact split looks ahead: whether this is the last batch.
            following = list(islice(indices, self.batch_size)) if full and self.sampler.uneven == "exact" else None
            if full and following == [] and iteration.short and not self.drop_last and len(batch) > 1:
                yield batch[:-1]
                yield batch[-1:]
            elif full or not self.drop_last:
                yield batch
            batch = list(islice(indices, self.batch_size)) if following is None else following

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
        iteration = self.expected()
        return self._deal(iteration, BATCHES_AHEAD, skip=iteration.skip)
