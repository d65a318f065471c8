"""Each rank's part of the one order that a user's sampler defines.

Every rank reads the user's own sampler, under random-number states that are the same on all ranks, and keeps what is
its. A round is one item for each rank; the last round may be partial, and what happens to it is ``uneven``: "pad"
gives the ranks that would go without an item from the beginning again (as torch's DistributedSampler does), "drop"
leaves the round out, "exact" gives ranks different numbers of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from poplin.data.generators import IsolatedRng
from poplin.data.iteration import Iteration

#: How many indices, or batches, of an unknown sampler are read at once, so that generators are exchanged seldom.
INDICES_AHEAD = 1024
BATCHES_AHEAD = 64
#: They use no generator.
ORDERED = (SequentialSampler, list, tuple, range)
#: They use a generator only while their whole order is made. Reading them whole keeps a generator of their own the
#: same on all ranks even where ranks stop early at different places.
_SHUFFLED = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def rounds(source: Iterable[Any], size: int, seed: int, ahead: int = INDICES_AHEAD) -> Iterator[list[Any]]:
    """The items of ``source`` in lists of ``size``; only the last may be shorter.

    Args:
        source: a sampler.
        size: of a round.
        seed: of the global generators while the code of ``source`` runs.
        ahead: about how many items of a source of unknown kind are read at once.
    """
    if type(source) in ORDERED:
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
    ahead: int = INDICES_AHEAD,
    skip: int = 0,
) -> Iterator[Any]:
    """This rank's items of ``source``; where they are padded is written into ``iteration``.

    Args:
        source: a sampler, the same on all ranks.
        rank: this process's part of the data.
        world_size: number of parts.
        uneven: "pad", "drop" or "exact".
        seed: as in :func:`rounds`.
        iteration: the pass this is for.
        per_batch: how many items make a batch.
        padded_samples: what one padded item is in ``Iteration.padded_samples``.
        ahead: as in :func:`rounds`.
        skip: how many of this rank's first items are left out.
    """
    if iteration.rewind is not None:
        iteration.rewind()
        iteration.rewind = None  # it holds the loader, which holds what holds this: workers would outlive their loader
    first: list[Any] = []
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


def draws_only_from_torch(source: Any) -> bool:
    """Whether a sampler is one of torch's own, of which we know that no generator but torch's is used."""
    if type(source) is BatchSampler:
        return draws_only_from_torch(source.sampler)
    return type(source) in (*ORDERED, *_SHUFFLED)
