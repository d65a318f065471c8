"""Parameters that can't be sharded: those without a dimension, and those that are no floating-point numbers.

Each rank keeps them whole. ``fully_shard`` does nothing about the gradients of what it ignores, so they are averaged
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def cant_be_sharded(parameter: nn.Parameter) -> bool:
    """Whether ``fully_shard`` can't take it."""
    return parameter.dim() == 0 or not (parameter.is_floating_point() or parameter.is_complex())


class WholeParameters:
    """Averages the gradients of parameters that every rank has whole, as soon as they are there.

    An average of what is averaged already is the same, so gradients may be accumulated over synchronised passes.

    Args:
        parameters: the parameters.
        group: of the ranks that share the data; None means all.
        world_size: their number.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: Any, world_size: int) -> None:
        #: False under ``no_backward_sync``.
        self.enabled = True
        self._group, self._world_size = group, world_size
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._average)
            for parameter in parameters
            if parameter.requires_grad
        ]

    def _average(self, parameter: torch.Tensor) -> None:
        if self.enabled and self._world_size > 1 and parameter.grad is not None:
            dist.all_reduce(parameter.grad, dist.ReduceOp.SUM, group=self._group)
            parameter.grad /= self._world_size
