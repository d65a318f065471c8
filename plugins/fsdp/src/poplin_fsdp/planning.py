"""What is gathered together, in words, and what it adds to a process's memory at its peak."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from poplin_fsdp.averaging import cant_be_sharded
from poplin_fsdp.grouping import Group


def gathered_bytes(groups: Sequence[Group], param_dtype: torch.dtype | None, keeps_all: bool) -> int:
    """Bytes of what is gathered at once, and of the whole gradients of one group before they are split.

    The last group, the root's, stays gathered between forward and backward; of the others one computes while the next
    one is being gathered.

    Args:
        groups: modules that are gathered together, the root's last.
        param_dtype: in which they are gathered; None: their own.
        keeps_all: whether every group stays gathered between forward and backward.
    """
    seen: set[int] = set()
    sizes: list[int] = []
    gradients: list[int] = []
    for group in groups:
        own = {id(parameter): parameter for unit in group for parameter in unit.parameters()}
        new = [parameter for key, parameter in own.items() if key not in seen and not cant_be_sharded(parameter)]
        seen |= set(own)
        sizes.append(sum(_nbytes(parameter, param_dtype) for parameter in new))
        gradients.append(sum(_nbytes(parameter, param_dtype) for parameter in new if parameter.requires_grad))
    *inner, root = sizes
    gathered = root + (sum(inner) if keeps_all else sum(sorted(inner)[-2:]))
    return gathered + max(gradients)


def described(units: int, chosen: int, whole: int) -> tuple[str, str]:
    """How a module was sharded, and why.

    Args:
        units: number of groups, the root's included.
        chosen: number of modules that were to be units of their own.
        whole: number of parameters that are in no unit.
    """
    reasons = ["the policy selects them" if chosen else "no policy names layers to gather one by one"]
    if 1 + chosen > units:
        reasons.append(f"{1 + chosen - units} more are joined with others, because they share parameters")
    if whole:
        reasons.append(f"{whole} parameter(s) are left alone: they can't be sharded, or are ignored, or set up before")
    return f"{units} unit(s)", "; ".join(reasons)


def _nbytes(parameter: nn.Parameter, dtype: torch.dtype | None) -> int:
    return parameter.numel() * (dtype.itemsize if dtype is not None else parameter.element_size())
