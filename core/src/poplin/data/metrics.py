"""Results of all processes, each sample once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from poplin.errors import ArgumentTypeError, CollectiveError
from poplin.utilities.apply_func import apply_to_values


def gather_for_metrics(data: Any, *, strategy: Any, loaders: Iterable[Any]) -> Any:
    """Gather a batch's results along the first dimension over those who share the data, each sample once.

    Args:
        data: tensors of shape ``(batch, ...)``, nested in any collection, made from the batch that a set-up
            dataloader just gave; their first dimension may differ between ranks, the others must not. Scalars and
            numbers are gathered to a tensor of shape ``(number of processes,)``. None stays None.
        strategy: its ``data_group`` is gathered over.
        loaders: the set-up dataloaders; the one that delivered last says what of its batch is padding.

    Returns:
        The same structure; the results of rank 0 first, then those of rank 1, ...

    Raises:
        ArgumentTypeError: something in ``data`` is neither a tensor nor a number.
        CollectiveError: the other ranks have no such batch (``uneven="exact"``), or the shapes don't fit.
    """
    device = strategy.root_device
    leaves: list[Tensor] = []

    def take(leaf: Any) -> Any:
        leaves.append(_as_tensor(leaf, device))
        return leaf

    apply_to_values(data, take)
    if not leaves:
        return data
    alone = strategy.data_world_size == 1
    padding = 0 if alone else _padding(loaders)
    kept = [_without_padding(leaf, padding) for leaf in leaves]
    if not alone:
        sizes = strategy.all_gather(torch.tensor([leaf.shape[0] for leaf in kept], device=device), strategy.data_group)
        rows = sizes.tolist()
        kept = [_gather(leaf, [row[place] for row in rows], strategy) for place, leaf in enumerate(kept)]
    results = iter(kept)
    return apply_to_values(data, lambda _: next(results))


def _as_tensor(leaf: Any, device: torch.device) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    if isinstance(leaf, (bool, int, float)):
        return torch.tensor(leaf, device=device)
    raise ArgumentTypeError(
        f"gather_for_metrics() gathers tensors and numbers, and found a {type(leaf).__name__}. Turn it into a tensor, "
        "or leave it out and gather it with fabric.all_gather or torch.distributed.all_gather_object."
    )


def _padding(loaders: Iterable[Any]) -> int | None:
    """How many samples at the end of the batch at hand are repetitions; None means all."""
    feeds = [loader._fabric_feed for loader in loaders]
    # After the end of a pass nothing is the loader's last batch: what is gathered then is something else.
    feeds = [feed for feed in feeds if feed.current is not None and feed.current.stamp and not feed.current.finished]
    if not feeds:
        return 0
    feed = max(feeds, key=lambda feed: feed.current.stamp)
    if feed.is_lonely():
        raise CollectiveError(
            "gather_for_metrics() can't gather this batch: with uneven='exact' some processes have one batch less, and "
            "they don't call it. Add up your metric on each process and all_reduce it after the loop, or use "
            "uneven='pad', whose repeated samples are left out here."
        )
    padding: int | None = feed.padding()
    return padding


def _without_padding(leaf: Tensor, padding: int | None) -> Tensor:
    if leaf.dim() == 0:
        leaf = leaf.reshape(1)
        return leaf[:0] if padding is None else leaf
    if padding is None:
        return leaf[:0]
    return leaf[: max(leaf.shape[0] - padding, 0)] if padding else leaf


def _gather(leaf: Tensor, sizes: list[int], strategy: Any) -> Tensor:
    longest = max(sizes)
    if leaf.shape[0] < longest:
        leaf = torch.cat([leaf, leaf.new_zeros((longest - leaf.shape[0], *leaf.shape[1:]))])
    everything: Tensor = strategy.all_gather(leaf.contiguous(), strategy.data_group)
    if min(sizes) == longest:
        return everything.flatten(0, 1)
    return torch.cat([part[:size] for part, size in zip(everything, sizes, strict=True)])
