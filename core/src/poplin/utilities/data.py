"""Helpers around dataloaders and samplers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset

from poplin.data.generators import IsolatedRng, mixed_seed
from poplin.errors import ArgumentValueError
from poplin.utilities.types import AttributeDict

__all__ = [
    "AttributeDict",
    "DistributedSamplerWrapper",
    "has_iterable_dataset",
    "has_len",
    "suggested_max_num_workers",
]


def has_iterable_dataset(dataloader: Any) -> bool:
    """Whether the dataloader's dataset is an IterableDataset."""
    return isinstance(getattr(dataloader, "dataset", None), IterableDataset)


def has_len(dataloader: Any) -> bool:
    """Whether the dataloader knows its length. (One over an IterableDataset asks the dataset.)"""
    try:
        length = len(dataloader.dataset) if has_iterable_dataset(dataloader) else len(dataloader)
    except (TypeError, NotImplementedError):
        return False
    return length >= 0


def suggested_max_num_workers(local_world_size: int) -> int:
    """How many dataloader workers each process can have so that all of them together have a core each.

    Args:
        local_world_size: number of processes on this node.

    Returns:
        The cores that this process may use, divided by the processes; at least 1.

    Raises:
        ArgumentValueError: there is not at least one process.
    """
    if local_world_size < 1:
        raise ArgumentValueError(f"local_world_size={local_world_size}: a node has at least one process.")
    return max(1, _usable_cores() // local_world_size)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Items:
    """What a sampler yields, as a dataset for another sampler."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def read(self, seed: int) -> list[Any]:
        with IsolatedRng(seed=seed):
            return list(self.sampler)


class DistributedSamplerWrapper(DistributedSampler[Any]):
    """This rank's part of what another sampler yields, for a dataloader of your own making.

    ``Fabric.setup_dataloaders`` does this by itself. The wrapped sampler runs under random-number states that depend
    only on ``seed`` and epoch, so that all ranks see one order.

    Args:
        sampler: any finite sampler with a length.
        num_replicas, rank, shuffle, seed, drop_last: as for torch's DistributedSampler; ``shuffle`` (True, as there)
            mixes what the sampler yields.
    """

    def __init__(self, sampler: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(_Items(sampler), *args, **kwargs)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        items = self.dataset.read(mixed_seed(self.seed, self.epoch))  # type: ignore[attr-defined]
        return (items[place] for place in super().__iter__())

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffle, here and in the wrapped sampler if it has epochs."""
        super().set_epoch(epoch)
        inner = self.dataset.sampler  # type: ignore[attr-defined]
        if callable(getattr(inner, "set_epoch", None)):
            inner.set_epoch(epoch)
