"""An iterable dataset of which each rank, and each of its loader workers, gets a part."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from poplin.data.dealing import deal
from poplin.data.generators import mixed_seed
from poplin.data.iteration import Iteration


class ShardedIterable(IterableDataset[Any]):
    """This process's samples of a user's iterable dataset; an instance of its class, with its attributes.

    Each rank and each worker reads the whole dataset, under random-number states that are the same everywhere, and
    keeps every n-th sample. A dataset that splits itself over workers is split over ranks only.

    Args:
        source: the user's dataset.
        rank: this process's part of the data.
        world_size: number of parts.
        uneven: "pad", "drop" or "exact", as for samplers; workers count like ranks.
        seed: the same on all ranks; with the epoch it decides what ``source`` draws.
        num_workers: of the dataloader.
        splits_itself: whether ``source`` gives each worker a part of its own.
    """

    _own = frozenset({"_shared", "_source", "num_workers", "rank", "seed", "splits_itself", "uneven", "world_size"})

    def __init__(
        self, source: Any, *, rank: int, world_size: int, uneven: str, seed: int, num_workers: int, splits_itself: bool
    ) -> None:
        self._source = source
        self.rank = rank
        self.world_size = world_size
        self.uneven = uneven
        self.seed = seed
        self.num_workers = num_workers
        self.splits_itself = splits_itself
        self._shared = _shared_memory(num_workers)

    def expect(self, iteration: Iteration) -> None:
        """The next reading of this dataset belongs to ``iteration``. Workers that live on learn it too."""
        self._shared[:, 1:] = -1
        self._shared[:, 0] = iteration.epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        epoch = int(self._shared[worker, 0])
        if info is not None and callable(getattr(self._source, "set_epoch", None)):
            self._source.set_epoch(epoch)  # a worker that lives on has a dataset of its own
        split = info is not None and not self.splits_itself
        workers = info.num_workers if info is not None and split else 1
        iteration = Iteration(epoch)
        items = deal(
            self._source,
            rank=self.rank + self.world_size * (worker if split else 0),
            world_size=self.world_size * workers,
            uneven=self.uneven,
            seed=mixed_seed(self.seed, epoch, worker if self.splits_itself else 0),
            iteration=iteration,
            ahead=1,
        )
        for item in items:
            if iteration.padded_batch is not None:
                self._shared[worker, 1] = iteration.padded_batch
            if iteration.lonely_batch is not None:
                self._shared[worker, 2] = iteration.lonely_batch
            yield item

    def padded_sample(self, worker: int) -> int:
        """Index, among the samples of this worker, of one that is repeated; -1 if there is none (so far)."""
        return int(self._shared[worker, 1])

    def lonely_sample(self, worker: int) -> int:
        """Index, among the samples of this worker, of one that some other part has no counterpart of; -1 if none."""
        return int(self._shared[worker, 2])

    def __len__(self) -> int:
        total, ranks = len(self._source), self.world_size
        workers = max(self.num_workers, 1) if not self.splits_itself else 1
        parts = ranks * workers
        if self.uneven == "drop":
            return total // parts * workers
        if self.uneven == "pad":
            return -(-total // parts) * workers
        return sum((total - part + parts - 1) // parts for part in range(self.rank, parts, ranks))

    def __getitem__(self, index: Any) -> Any:
        return self._source[index]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._source)

    def __getattr__(self, name: str) -> Any:
        if name in ShardedIterable._own or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._source, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ShardedIterable._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self._source, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:  # the default would ask the class that it says it has
        own = {name: getattr(self, name) for name in ShardedIterable._own if name != "_shared"}
        return _rebuilt, (own, self._shared)


def _rebuilt(own: dict[str, Any], shared: torch.Tensor) -> ShardedIterable:
    dataset: ShardedIterable = ShardedIterable.__new__(ShardedIterable)
    for name, value in own.items():
        object.__setattr__(dataset, name, value)
    # On its way to a worker it is still shared; a pickle or a deep copy is another dataset with memory of its own.
    own_memory = not shared.is_shared()
    object.__setattr__(dataset, "_shared", _shared_memory(dataset.num_workers) if own_memory else shared)
    return dataset


def _shared_memory(num_workers: int) -> torch.Tensor:
    """One row for each worker: the epoch, and the places of a padded and of a lonely sample (-1: none)."""
    memory = torch.full((max(num_workers, 1), 3), -1, dtype=torch.int64)
    memory[:, 0] = 0
    memory.share_memory_()
    return memory


# --- what a dataset does by itself

_OVER_WORKERS = frozenset({"get_worker_info"})
_OVER_RANKS = frozenset({"get_rank", "get_world_size", "global_rank", "num_replicas", "split_dataset_by_node"})


def splits_over_workers(dataset: Any, worker_init_fn: Any) -> bool:
    """Whether the dataset, or the worker's start function, looks at which worker it is in."""
    return _mentions(dataset, _OVER_WORKERS) or _function_mentions(worker_init_fn, _OVER_WORKERS)


def splits_over_ranks(dataset: Any) -> bool:
    """Whether the dataset looks at which rank it is on."""
    held = getattr(dataset, "__dict__", {})
    if ("num_replicas" in held or "world_size" in held) and "rank" in held:
        return True
    return held.get("_distributed") is not None or _mentions(dataset, _OVER_RANKS)


def _mentions(dataset: Any, names: frozenset[str]) -> bool:
    for base in type(dataset).__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins", "typing"):
            continue
        if any(_function_mentions(member, names) for member in vars(base).values()):
            return True
    held = [*getattr(dataset, "__dict__", {}).values()]
    held += [item for value in held if isinstance(value, (list, tuple)) for item in value[:100]]
    return any(_mentions(inner, names) for inner in held if isinstance(inner, IterableDataset) and inner is not dataset)


def _function_mentions(function: Any, names: frozenset[str], depth: int = 1) -> bool:
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return False
    used = _names_in(function.__code__)
    if names & used:
        return True
    helpers = (function.__globals__.get(name) for name in used) if depth else ()
    return any(
        _function_mentions(helper, names, depth - 1)
        for helper in helpers
        if isinstance(helper, FunctionType) and helper.__module__ == function.__module__
    )


def _names_in(code: CodeType) -> set[str]:
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names
