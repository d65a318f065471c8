"""The strategy ``dp``: one process, several GPUs, each batch split over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from poplin.errors import ArgumentValueError, SelectionError
from poplin.strategies import Strategy, parse_reduce_op
from poplin_cuda.replicas import Replicas

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator
    from poplin.checkpoint import CheckpointIO
    from poplin.precision import Precision
    from poplin.selection import Selection

#: Name of a reduction → what it does with the outputs of all replicas.
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
    "product": torch.prod,
    "prod": torch.prod,
}


class DataParallelStrategy(Strategy):
    """torch's DataParallel: replicas on several GPUs of one process, in threads. Nothing is launched.

    Each forward splits its inputs along their first dimension, copies the module to every GPU, and gathers the outputs
    on the first one. Kept for scripts that have it; ``ddp`` is faster, as torch itself says.

    Args:
        accelerator, parallel_devices, checkpoint_io, precision: what is fixed on the strategy object; None leaves the
            choice to Fabric.
    """

    needs_forward = True

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            checkpoint_io=checkpoint_io,
            precision=precision,
        )

    @property
    def root_device(self) -> torch.device:
        """The first device: the module's own, where batches go and outputs come from."""
        if not self.parallel_devices:
            raise SelectionError(
                "This DataParallelStrategy has no devices yet: give it some (parallel_devices=...), or hand it to "
                "Fabric."
            )
        return self.parallel_devices[0]

    def check(self, selection: Selection) -> None:
        """CUDA devices on one node, in a process that nobody has made one of several.

        Raises:
            SelectionError: something else was asked for.
        """
        accelerator = selection.accelerator
        if accelerator.device_type != "cuda":
            raise SelectionError(
                f"The strategy 'dp' runs torch's DataParallel on CUDA devices, and the accelerator is "
                f"{accelerator.name()!r}. Use strategy='ddp' for several processes, or strategy='auto'."
            )
        if selection.num_nodes > 1:
            raise SelectionError(
                f"The strategy 'dp' is one process, and num_nodes={selection.num_nodes} was asked for. Use "
                "strategy='ddp' on several nodes."
            )
        environment = selection.environment
        if environment.creates_processes_externally and environment.world_size() > 1:
            raise SelectionError(
                f"The strategy 'dp' is one process, and {type(environment).__name__} says that there are "
                f"{environment.world_size()}, each of which would train alone. Start the script once (with `python`), "
                "or use strategy='ddp'."
            )

    # --- setup

    def setup_module(self, module: nn.Module) -> nn.Module:
        precision = self.precision
        context = precision.forward_context if precision is not None and precision.autocasts else None
        return Replicas(module, list(self.parallel_devices or ()), context)

    def original_module(self, wrapped: nn.Module) -> nn.Module:
        return wrapped.original if isinstance(wrapped, Replicas) else wrapped

    def forward_method(self, wrapped: nn.Module, name: str) -> Callable[..., Any]:
        if isinstance(wrapped, Replicas):
            return wrapped.method(name)
        return super().forward_method(wrapped, name)

    # --- results of replicas

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        """Reduce what all replicas returned to one value: a replica's scalar has come back as one item of a vector.

        Args:
            tensor: gathered outputs; all of its dimensions are reduced. The mean of integers is a float.
            group: not used, as there is one process.
            reduce_op: "mean", "sum", "min", "max", "product", or a ReduceOp.

        Raises:
            ArgumentValueError: another reduction.
        """
        reduction = parse_reduce_op(reduce_op)
        if tensor.dim() == 0:
            return tensor.float() if reduction.mean and not _is_float(tensor) else tensor
        if reduction.mean:
            return (tensor if _is_float(tensor) else tensor.float()).mean()
        if reduction.name not in _REDUCTIONS:
            raise ArgumentValueError(
                f"reduce_op={reduce_op!r}: the strategy 'dp' reduces by mean, {', '.join(_REDUCTIONS)}."
            )
        return _REDUCTIONS[reduction.name](tensor)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
