"""Collectives on nested collections, over the collectives on tensors that every strategy has.

What is small travels together, so that a dictionary of metrics costs a few messages and not a few for each of them.
Ranks see the leaves of mappings in the order of their keys, whatever the order in which each rank filled its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poplin.strategies.collective_log import describe
from poplin.strategies.parallel import ParallelStrategy
from poplin.strategies.reductions import parse_reduce_op
from poplin.strategies.strategy import Strategy
from poplin.utilities.apply_func import apply_to_leaves

#: Tensors of fewer bytes travel together.
SMALL_BYTES = 1 << 15


class _Leaf(NamedTuple):
    path: str
    tensor: Tensor


def gather_nested(strategy: Strategy, data: Any, group: Any | None = None, sync_grads: bool = False) -> Any:
    """``data`` with each tensor of every rank stacked in a new first dimension (none at world size 1).

    Args:
        strategy: does it.
        data: tensors, numbers and arrays (they become tensors on the device), nested in any collection; what else is
            in it stays as it is.
        group: a process group; None means all.
        sync_grads: whether gradients flow back.

    Raises:
        CollectiveError: structures, shapes or dtypes differ across ranks; on every rank.
    """
    if isinstance(data, Tensor):
        return strategy.all_gather(data, group, sync_grads)
    leaves = _leaves(data, strategy.root_device)
    if not _stands_alone(data):
        _agree(strategy, "all_gather", leaves, group)
    elif leaves:
        return strategy.all_gather(leaves[0].tensor, group, sync_grads)

    def gather(tensors: list[Tensor]) -> list[Tensor]:
        if len(tensors) == 1:
            return [strategy.all_gather(tensors[0], group, sync_grads)]
        parts = [tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1) for tensor in tensors]
        together = strategy.all_gather(torch.cat([part.view(torch.uint8) for part in parts]), group)
        if together.dim() == 1:  # one rank
            return tensors
        gathered = torch.split(together, [part.nbytes for part in parts], dim=1)
        return [
            piece.contiguous().view(tensor.dtype).view(len(together), *tensor.shape)
            for piece, tensor in zip(gathered, tensors, strict=True)
        ]

    def travels_with(tensor: Tensor) -> Any:
        return tensor.device if not (sync_grads and tensor.requires_grad) else None

    return _rebuilt(data, _in_groups(leaves, travels_with, gather))


def reduce_nested(strategy: Strategy, data: Any, group: Any | None = None, reduce_op: Any = "mean") -> Any:
    """``data`` with each tensor reduced over ranks, in place; the mean of integers is a new float tensor.

    Args:
        strategy: does it.
        data: tensors, numbers and arrays (they become tensors on the device), nested in any collection; what else is
            in it stays as it is.
        group: a process group; None means all, or those who share the data for a mean.
        reduce_op: "mean", "sum", ... or a ReduceOp.

    Raises:
        CollectiveError: collections of several tensors differ across ranks (structure, shapes, dtypes); on every rank.
    """
    reduction = parse_reduce_op(reduce_op)
    if isinstance(data, Tensor):
        return strategy.all_reduce(data, group, reduce_op)
    if group is None and reduction.mean:
        group = strategy.data_group
    leaves = _leaves(data, strategy.root_device)
    if _stands_alone(data) or len(leaves) == 1 or strategy.world_size == 1:  # one process sends nothing
        return _rebuilt(data, [strategy.all_reduce(leaf.tensor, group, reduce_op) for leaf in leaves])
    _agree(strategy, f"all_reduce {reduction.name}", leaves, group)

    def reduce(tensors: list[Tensor]) -> list[Tensor]:
        if len(tensors) == 1:
            return [strategy.all_reduce(tensors[0], group, reduce_op)]
        together = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        reduced = strategy.all_reduce(together, group, reduce_op)
        pieces = [
            piece.view(tensor.shape)
            for piece, tensor in zip(torch.split(reduced, [tensor.numel() for tensor in tensors]), tensors, strict=True)
        ]
        if reduced.dtype != together.dtype:  # the mean of integers
            return [piece.clone() for piece in pieces]
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.detach().copy_(piece)
        return tensors

    return _rebuilt(data, _in_groups(leaves, lambda tensor: (tensor.dtype, tensor.device), reduce))


def _agree(strategy: Strategy, what: str, leaves: list[_Leaf], group: Any | None) -> None:
    """Every rank is about to do the same to the same structure. Barriers compare their names, and report them."""
    if strategy.world_size == 1:
        return
    structure = ", ".join(f"{leaf.path} {describe(leaf.tensor)}" for leaf in sorted(leaves, key=lambda leaf: leaf.path))
    name = f"before {what} of {{{structure}}}"
    if group is None:
        strategy.barrier(name)
    elif isinstance(strategy, ParallelStrategy):
        strategy.barrier(name, group=group)


def _in_groups(
    leaves: list[_Leaf], kind: Callable[[Tensor], Any], collective: Callable[[list[Tensor]], list[Tensor]]
) -> list[Tensor]:
    """``collective`` on the leaves: on small ones of one kind together, on others alone. In the order of their paths.

    Args:
        leaves: in the order of the collection.
        kind: what those that travel together have in common; None: alone.
        collective: takes and returns tensors.

    Returns:
        The results, in the order of ``leaves``.
    """
    groups: dict[Any, list[int]] = {}
    for place in sorted(range(len(leaves)), key=lambda place: leaves[place].path):
        tensor = leaves[place].tensor
        common = kind(tensor) if tensor.layout is torch.strided and tensor.nbytes < SMALL_BYTES else None
        groups.setdefault(place if common is None else (common,), []).append(place)
    results: dict[int, Tensor] = {}
    for places in groups.values():
        results.update(zip(places, collective([leaves[place].tensor for place in places]), strict=True))
    return [results[place] for place in range(len(leaves))]


# --- the leaves of a collection


def _is_number(data: Any) -> bool:
    if isinstance(data, (bool, int, float, complex)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(data, (numpy.ndarray, numpy.generic)) and data.dtype.kind in "biufc"


def _stands_alone(data: Any) -> bool:
    return isinstance(data, Tensor) or _is_number(data)


def _leaves(data: Any, device: torch.device) -> list[_Leaf]:
    """Every tensor and number in ``data``, as tensors, in the order in which :func:`apply_to_leaves` meets them."""
    return [
        _Leaf(path, item if isinstance(item, Tensor) else torch.as_tensor(item, device=device))
        for path, item in _walk(data, "")
    ]


def _walk(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    if _stands_alone(data):
        yield path, data
    elif isinstance(data, (str, bytes, bytearray, memoryview, range)):
        return
    elif isinstance(data, Mapping):
        for key, item in data.items():
            yield from _walk(item, f"{path}[{key!r}]")
    elif isinstance(data, Sequence):
        for place, item in enumerate(data):
            yield from _walk(item, f"{path}[{place:04d}]")  # so that the order of the text is that of the places
    elif is_dataclass(data) and not isinstance(data, type):
        for field in fields(data):
            if hasattr(data, field.name):
                yield from _walk(getattr(data, field.name), f"{path}.{field.name}")


def _rebuilt(data: Any, results: list[Tensor]) -> Any:
    """``data`` with its leaves replaced, in order."""
    remaining = iter(results)
    return apply_to_leaves(data, lambda _: next(remaining), _is_number)
