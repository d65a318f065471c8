"""The strategy: every process has a whole copy of the module, and gradients are averaged over all of them."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from poplin.errors import ArgumentTypeError, ArgumentValueError, SelectionError
from poplin.strategies import Memory, ParallelStrategy, memory_of
from poplin_ddp.replica import NoSync, Replica

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator
    from poplin.checkpoint import CheckpointIO
    from poplin.environments import ClusterEnvironment
    from poplin.precision import Precision
    from poplin.selection import Selection

#: How the processes start → the launcher that does it.
LAUNCHERS = {"popen": "subprocess", "spawn": "spawn", "fork": "fork", "forkserver": "forkserver"}
#: Arguments of torch's that the strategy gives itself.
_OWN_ARGUMENTS = ("self", "module", "device_ids", "output_device", "dim")


class DDPStrategy(ParallelStrategy):
    """Data parallelism by torch's DistributedDataParallel, on any device type with a process-group backend.

    Each process trains on its own part of the data; the mean of all gradients is what every one of them steps by.
    Parameters and buffers start as rank 0's. ``torch.nn.SyncBatchNorm`` works on GPUs only; on the CPU torch refuses
    it in training.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision: what is fixed on the strategy
            object; None leaves the choice to Fabric.
        process_group_backend: name of the backend for the devices' tensors; None asks the accelerator.
        timeout: of collectives and of connecting, a timedelta or seconds; None takes torch's default.
        start_method: how processes start: ``"popen"`` (the script runs again), ``"spawn"``, ``"fork"`` or
            ``"forkserver"`` (a function runs).
        ddp_kwargs: for DistributedDataParallel: ``find_unused_parameters``, ``static_graph``, ``broadcast_buffers``,
            ``gradient_as_bucket_view``, ``bucket_cap_mb``...

    Raises:
        ArgumentValueError: an unknown start method.
        ArgumentTypeError: an argument that DistributedDataParallel doesn't have.
    """

    needs_forward = True

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        start_method: str = "popen",
        **ddp_kwargs: Any,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        if start_method not in LAUNCHERS:
            raise ArgumentValueError(
                f"start_method={start_method!r} is none of {', '.join(map(repr, LAUNCHERS))}: choose one of them."
            )
        _check_options(ddp_kwargs)
        self.start_method = start_method
        self.launcher_name = LAUNCHERS[start_method]
        self.ddp_kwargs = dict(ddp_kwargs)
        self._replicas: list[weakref.ref[Replica]] = []

    def check(self, selection: Selection) -> None:
        """The devices need a process-group backend.

        Raises:
            SelectionError: the accelerator has none, and none was given.
        """
        super().check(selection)
        accelerator = selection.accelerator
        if accelerator.collective_backend is None and self.process_group_backend is None:
            raise SelectionError(
                f"The strategy 'ddp' averages gradients through a process group, and the accelerator "
                f"{accelerator.name()!r} names no backend for it (collective_backend). Give one: "
                "DDPStrategy(process_group_backend=...), use a strategy made for this accelerator, or devices=1 with "
                "strategy='auto'."
            )

    # --- setup

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Wrap ``module``, unless nothing in it can be trained: then it is returned as it is."""
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        replica = Replica(module, self._input_device(module), self.run_engine, **self.ddp_kwargs)
        self._replicas = [*(one for one in self._replicas if one() is not None), weakref.ref(replica)]
        return replica

    def original_module(self, wrapped: nn.Module) -> nn.Module:
        return wrapped.original if isinstance(wrapped, Replica) else wrapped

    def forward_method(self, wrapped: nn.Module, name: str) -> Callable[..., Any]:
        if isinstance(wrapped, Replica):
            return wrapped.method(name)
        return super().forward_method(wrapped, name)

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass; where a rank is missing in it, the error says which."""
        self.run_engine("backward", super().backward, tensor, module, *args, **kwargs)

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[Any]:
        """Context in which gradients stay this rank's own. Forward and backward both belong inside."""
        if enabled and isinstance(module, Replica):
            return NoSync(module)
        return nullcontext()

    def teardown(self) -> None:
        """The replicas let go of the process group; their modules go on alone."""
        for reference in self._replicas:
            if (replica := reference()) is not None:
                replica.release()
        self._replicas.clear()
        super().teardown()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_replicas": []}

    def planned_memory(self, module: nn.Module, make_optimizer: Callable[..., Any] | None = None) -> Memory:
        """A whole copy, and the buckets in which gradients travel: as large as all of them, unless they are views."""
        memory = memory_of(module, make_optimizer)
        if self.ddp_kwargs.get("gradient_as_bucket_view"):
            return memory
        return dataclasses.replace(memory, communication=memory.gradients)

    def _input_device(self, module: nn.Module) -> torch.device | None:
        """The device that inputs are moved to: this process's own, if the whole module is there; None on the CPU."""
        root = self.root_device
        if root.type == "cpu" or root.index is None:
            return None
        return root if all(parameter.device == root for parameter in module.parameters()) else None


def _check_options(options: dict[str, Any]) -> None:
    known = [
        name for name in inspect.signature(DistributedDataParallel.__init__).parameters if name not in _OWN_ARGUMENTS
    ]
    for name in options:
        if name in _OWN_ARGUMENTS:
            raise ArgumentTypeError(f"DDPStrategy got {name!r}, which the strategy itself decides for each module.")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Those that exist are {', '.join(known)}."
            raise ArgumentTypeError(f"DDPStrategy got {name!r}, which DistributedDataParallel has not. {hint}")
