"""Reductions over ranks, in place, for every dtype: what backends don't know is computed in a dtype that they do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from poplin.errors import ArgumentTypeError, ArgumentValueError


class Reduction(NamedTuple):
    """What is to be computed."""

    #: For people.
    name: str
    #: torch's operation; for a mean that of the sum.
    op: Any
    #: Whether the sum is to be divided by the number of ranks.
    mean: bool


#: Computed in their own dtype by every backend.
_COMPUTED_AS_THEY_ARE = frozenset(
    (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
)
#: Computed in another dtype, because backends know no reduction in theirs.
_COMPUTED_IN = {
    "int16": torch.int32,
    "uint16": torch.int32,
    "uint32": torch.int64,
    "uint64": torch.int64,
    "float8_e4m3fn": torch.float32,
    "float8_e4m3fnuz": torch.float32,
    "float8_e5m2": torch.float32,
    "float8_e5m2fnuz": torch.float32,
}
#: Device types whose backend has turned out to know no average. Every rank finds out at the same call.
_without_average: set[str] = set()


def parse_reduce_op(reduce_op: Any) -> Reduction:
    """What a user wrote as ``reduce_op``.

    Raises:
        ArgumentTypeError: neither a string nor a ReduceOp.
        ArgumentValueError: a string that names no reduction; the message lists all.
    """
    if isinstance(reduce_op, Reduction):
        return reduce_op
    known = _known()
    if isinstance(reduce_op, str):
        try:
            return known[reduce_op.lower()]
        except KeyError:
            raise ArgumentValueError(
                f"reduce_op={reduce_op!r} is no reduction. The reductions are {', '.join(known)}, or a "
                "torch.distributed.ReduceOp."
            ) from None
    if reduce_op is None:
        return known["mean"]
    if isinstance(reduce_op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        if reduce_op == dist.ReduceOp.AVG:
            return known["mean"]
        return Reduction(str(reduce_op).rpartition(".")[2].lower(), reduce_op, False)
    raise ArgumentTypeError(
        f"reduce_op={reduce_op!r}: give a string such as 'mean' or 'sum', or a torch.distributed.ReduceOp."
    )


@functools.cache
def _known() -> dict[str, Reduction]:
    op = dist.ReduceOp
    known = {"mean": Reduction("mean", op.SUM, True), "avg": Reduction("mean", op.SUM, True)}
    for name, native in {
        "sum": op.SUM,
        "min": op.MIN,
        "max": op.MAX,
        "product": op.PRODUCT,
        "prod": op.PRODUCT,
        "band": op.BAND,
        "bor": op.BOR,
        "bxor": op.BXOR,
    }.items():
        known[name] = Reduction(name, native, False)
    return known


def reduces_directly(tensor: Tensor, reduction: Reduction) -> bool:
    """Whether torch's own collective, on ``tensor`` as it is, does what is asked."""
    return (
        tensor.dtype in _COMPUTED_AS_THEY_ARE
        and tensor.is_contiguous()
        and (not reduction.mean or (tensor.is_floating_point() and tensor.device.type not in _without_average))
    )


def native_op(reduction: Reduction) -> Any:
    """Torch's operation, where :func:`reduces_directly`."""
    return dist.ReduceOp.AVG if reduction.mean else reduction.op


def is_without_average(tensor: Tensor, reduction: Reduction, error: Exception) -> bool:
    """Whether ``error`` says that the backend of this device type knows no average. Nothing has been sent then."""
    if not reduction.mean or "AVG" not in str(error):
        return False
    _without_average.add(tensor.device.type)
    return True


def reduce_in_place(tensor: Tensor, reduction: Reduction, size: int, reduce: Callable[[Tensor, Any], None]) -> Tensor:
    """Reduce ``tensor`` in place and return it; the mean of integers is a new float tensor.

    Args:
        tensor: of any dtype and layout in memory.
        reduction: what to compute.
        size: number of ranks.
        reduce: the collective; gets a contiguous tensor of a dtype that backends know, and torch's operation.
    """
    integral = not (tensor.is_floating_point() or tensor.is_complex())
    if reduction.mean and integral:  # the sum is exact in int64, and the input stays as it was
        total = tensor.detach().to(torch.int64).contiguous()
        total = total.clone() if total.data_ptr() == tensor.data_ptr() else total
        reduce(total, dist.ReduceOp.SUM)
        return total / size
    if size == 1:
        return tensor
    target = tensor.detach()  # the same memory, without the graph: what is in place here is no step of it
    work, op = _computable(target, reduction.op)
    if not reduction.mean:
        reduce(work, op)
    else:
        reduce(work, dist.ReduceOp.SUM)
        work.div_(size)
    if work.data_ptr() != target.data_ptr():
        target.copy_(torch.view_as_complex(work) if target.is_complex() and not work.is_complex() else work)
    return tensor


def _computable(target: Tensor, op: Any) -> tuple[Tensor, Any]:
    """``target`` as a contiguous tensor that backends can reduce, the same memory if possible; and the operation."""
    if target.dtype is torch.bool:  # as sums and products of truth values: or, and
        op = {dist.ReduceOp.SUM: dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT: dist.ReduceOp.MIN}.get(op, op)
        return target.contiguous().view(torch.uint8), op
    if target.is_complex() and op == dist.ReduceOp.SUM:
        return torch.view_as_real(target.resolve_conj()).contiguous(), op
    other = _COMPUTED_IN.get(str(target.dtype).removeprefix("torch."))
    return (target.contiguous() if other is None else target.to(other).contiguous()), op
