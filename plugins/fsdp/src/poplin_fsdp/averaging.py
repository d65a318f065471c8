"""Parameters that are not sharded over the data: each rank that gets other data has them too.

They have no dimension, are no floating-point numbers, or were left alone by the user. ``fully_shard`` does nothing
about the gradients of what it ignores, so they are averaged here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from poplin_fsdp.mesh import REPLICATE, SHARD


def cant_be_sharded(parameter: nn.Parameter) -> bool:
    """Whether ``fully_shard`` can't take it."""
    return parameter.dim() == 0 or not (parameter.is_floating_point() or parameter.is_complex())


def is_replicated(parameter: nn.Parameter) -> bool:
    """Whether ``fully_shard`` has left it alone, so that nothing averages its gradient over the data."""
    if not isinstance(parameter, DTensor):
        return True
    return not {REPLICATE, SHARD} & set(parameter.device_mesh.mesh_dim_names or ())


class Averaging:
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
        gradient: Any = parameter.grad
        if self.enabled and self._world_size > 1 and gradient is not None:
            part = gradient._local_tensor if isinstance(gradient, DTensor) else gradient
            dist.all_reduce(part, dist.ReduceOp.SUM, group=self._group)
            part /= self._world_size
