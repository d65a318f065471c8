"""A look into torch's DataLoader: its samplers, whether it is as torch made it, and a copy with parts replaced."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

Loader = TypeVar("Loader", bound="DataLoader[Any]")


def copy_with(loader: Loader, replaced: Mapping[str, Any]) -> Loader:
    """A shallow copy of ``loader``, of the same class, with some attributes replaced.

    The class's constructor doesn't run, because nobody knows its arguments; a DataLoader refuses to have these
    attributes set, so they go into the ``__dict__``. An iterator with living workers stays with the original.
    """
    kind = type(loader)
    twin: Loader = object.__new__(kind)
    twin.__dict__.update(loader.__dict__)
    for name in copyreg._slotnames(kind):  # type: ignore[attr-defined]
        if hasattr(loader, name):
            object.__setattr__(twin, name, getattr(loader, name))
    twin.__dict__.update(replaced)
    twin.__dict__["_iterator"] = None
    return twin


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Whether the dataset is iterated instead of indexed."""
    return isinstance(loader.dataset, IterableDataset)


def index_slot(loader: DataLoader[Any]) -> str:
    """Name of the attribute that the loader reads indices from."""
    return "batch_sampler" if loader.batch_sampler is not None else "sampler"


def iterates_as_torch(loader: DataLoader[Any]) -> bool:
    """Whether each item that the sampler in use yields is one batch that is delivered, in that order."""
    kind = type(loader)
    own = kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator
    return not own and (loader.num_workers == 0 or bool(getattr(loader, "in_order", True)))


def samplers(loader: DataLoader[Any]) -> list[Any]:
    """The loader's samplers and those that they wrap, each once, the outermost first. The user's own objects."""
    found: list[Any] = []
    waiting = [loader.batch_sampler, loader.sampler]
    while waiting:
        sampler = waiting.pop(0)
        if sampler is None or any(sampler is other for other in found) or isinstance(sampler, (list, tuple, range)):
            continue
        if (source := getattr(sampler, "__dict__", {}).get("_source")) is not None and hasattr(sampler, "expect"):
            waiting.insert(0, source)  # ours, around the user's
            continue
        found.append(sampler)
        if len(found) > 20:
            break
        held = getattr(sampler, "__dict__", {})
        waiting += [held[name] for name in ("sampler", "batch_sampler", "_sampler", "base_sampler") if name in held]
    return found


def distributed_sampler(loader: DataLoader[Any]) -> Any | None:
    """A sampler of the user's that splits the data over ranks by itself, or None.

    torch's DistributedSampler, or whatever says which rank of how many it serves.
    """
    for sampler in samplers(loader):
        if isinstance(sampler, DistributedSampler):
            return sampler
        held = getattr(sampler, "__dict__", {})
        if ("num_replicas" in held or "world_size" in held) and "rank" in held:
            return sampler
        if "data_parallel_rank" in held and "data_parallel_size" in held:
            return sampler
    return None


def padding_of_distributed_sampler(loader: DataLoader[Any]) -> int | None:
    """Index of the batch at whose end torch's own DistributedSampler repeats a sample on this rank, or None."""
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return None
    sampler = loader.sampler if batches is None else batches.sampler
    if type(sampler) is not DistributedSampler or sampler.drop_last:
        return None
    last = sampler.num_samples - 1
    if last < 0 or last * sampler.num_replicas + sampler.rank < len(sampler.dataset):  # type: ignore[arg-type]
        return None
    return last // (1 if batches is None else batches.batch_size)
