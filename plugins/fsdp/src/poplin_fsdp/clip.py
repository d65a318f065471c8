"""Clipping gradients of which each rank holds a part, by the norm that a single process would have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from poplin.errors import NonFiniteGradientsError


def clip_norm(
    parameters: Sequence[nn.Parameter],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    device: torch.device,
) -> Tensor:
    """Clip the gradients of ``parameters`` by their total norm over all ranks, which is returned; a collective.

    Each rank's parts are summed where they are, and the sums over the ranks that hold other parts: one number for each
    way in which parameters are sharded.

    Args:
        parameters: DTensors and plain ones, the same on every rank.
        max_norm: the greatest total norm.
        norm_type: of the norm.
        error_if_nonfinite: whether to raise where the norm is not finite; gradients are then left as they are.
        device: of the norm.

    Returns:
        The total norm before clipping, the same on every rank.

    Raises:
        NonFiniteGradientsError: the norm is not finite; on every rank.
    """
    groups: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter in parameters:  # also those without a gradient: ranks must agree about the groups
        groups.setdefault(_sharding(parameter), []).extend(_part(parameter))
    norms = []
    for key, parts in groups.items():
        norms.append(_over_ranks(_local_norm(parts, norm_type, device), norm_type, key))
    total = _combined(norms, norm_type) if norms else torch.zeros((), device=device)
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise NonFiniteGradientsError(
            "The total norm of the gradients is non-finite, so they can't be clipped to it. Look for what went wrong "
            "in this step (the loss, the batch, the learning rate), or pass error_if_nonfinite=False, look at the norm "
            "that is returned, and leave the step out where it isn't finite."
        )
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for parts in groups.values():
        by_device: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for part in parts:
            by_device.setdefault((part.device, part.dtype), []).append(part)
        for (where, _), same in by_device.items():
            torch._foreach_mul_(same, factor.to(where))
    return total


def clip_value(parameters: Sequence[nn.Parameter], clip_val: float) -> None:
    """Clip each gradient to ``[-clip_val, clip_val]``: every rank its parts."""
    parts = [part for parameter in parameters for part in _part(parameter)]
    if parts:
        torch._foreach_clamp_min_(parts, -clip_val)
        torch._foreach_clamp_max_(parts, clip_val)


def _sharding(parameter: nn.Parameter) -> tuple[Any, ...]:
    """The mesh, and its dimensions over which ``parameter`` is split; empty if each rank has the whole."""
    if not isinstance(parameter, DTensor):
        return ()
    dimensions = tuple(index for index, placement in enumerate(parameter.placements) if not placement.is_replicate())
    return (parameter.device_mesh, *dimensions) if dimensions else ()


def _part(parameter: nn.Parameter) -> list[Tensor]:
    """This rank's part of the gradient, as a list of at most one."""
    gradient: Any = parameter.grad
    if gradient is None:
        return []
    if isinstance(gradient, DTensor):
        if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
            # tensor parallelism may leave sums that are yet to be made
            gradient = parameter.grad = gradient.redistribute(parameter.device_mesh, parameter.placements)
        local: Tensor = gradient._local_tensor
        return [local]
    return [gradient]


def _local_norm(parts: Sequence[Tensor], norm_type: float, device: torch.device) -> Tensor:
    filled = [part for part in parts if part.numel()]
    if not filled:
        return torch.zeros((), device=device)
    norms = torch._foreach_norm(filled, norm_type)
    dtype = max((norm.dtype for norm in norms), key=lambda dtype: dtype.itemsize)
    stacked = torch.stack([norm.to(device, dtype) for norm in norms])
    norm: Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return norm


def _over_ranks(norm: Tensor, norm_type: float, sharding: tuple[Any, ...]) -> Tensor:
    if not sharding:
        return norm
    mesh, *dimensions = sharding
    largest = math.isinf(norm_type)
    # single numbers: in float64 they lose nothing, and every rank sends the same dtype, gradients or not
    total = norm.to(mesh.device_type, torch.float32 if mesh.device_type == "mps" else torch.float64)
    total = total if largest else total**norm_type
    for dimension in dimensions:
        op = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        dist.all_reduce(total, op, group=mesh.get_group(dimension))
    total = total if largest else total ** (1.0 / norm_type)
    return total.to(norm.device, norm.dtype if norm.dtype.itemsize >= 4 else torch.float32)


def _combined(norms: Sequence[Tensor], norm_type: float) -> Tensor:
    if len(norms) == 1:
        return norms[0]
    stacked = torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms])
    total: Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return total
