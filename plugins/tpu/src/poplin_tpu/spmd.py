"""torch_xla's SPMD: one process, and tensors that are sharded over all devices by annotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from poplin.errors import ArgumentValueError, SelectionError
from poplin_tpu import runtime
from poplin_tpu.strategy import SingleDeviceXLAStrategy

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator
    from poplin.checkpoint import CheckpointIO
    from poplin.precision import Precision
    from poplin.selection import Selection

#: Name of the mesh's dimension over which batches and parameters are split.
AXIS = "fsdp"


class XLASPMDStrategy(SingleDeviceXLAStrategy):
    """One process whose tensors are split over all devices: batches along their first dimension, parameters as well.

    The compiler inserts the communication, so the loop is that of one device, and so are states: values are whole.

    Args:
        mesh_shape: how the devices stand, the second number for copies of the model: ``(4,)`` splits everything by
            four, ``(2, 2)`` keeps two copies of halves. None takes one row of all.
        min_size: parameters of fewer elements stay whole on each device.
        accelerator, checkpoint_io, precision: as for every strategy.

    Raises:
        ArgumentValueError: a mesh of no, or more than two dimensions.
    """

    def __init__(
        self,
        mesh_shape: Sequence[int] | None = None,
        min_size: int = 0,
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(accelerator=accelerator, checkpoint_io=checkpoint_io, precision=precision)
        if mesh_shape is not None and len(mesh_shape) not in (1, 2):
            raise ArgumentValueError(f"mesh_shape={mesh_shape!r}: give (shards,) or (shards, copies).")
        self.mesh_shape = None if mesh_shape is None else tuple(mesh_shape)
        self.min_size = min_size
        self._spmd_mesh: Any = None

    def check(self, selection: Selection) -> None:
        """One machine; the devices are all of it, as one."""
        if selection.num_nodes > 1:
            raise SelectionError("The strategy 'xla_spmd' is set up for one machine here: use num_nodes=1.")
        count = len(selection.devices)
        if self.mesh_shape is not None and torch.Size(self.mesh_shape).numel() != count:
            raise SelectionError(f"mesh_shape={self.mesh_shape} does not fit the {count} device(s) of the run.")
        one_device = selection.devices[:1]
        super().check(_WithDevices(selection, one_device))  # type: ignore[arg-type]

    def setup_environment(self) -> None:
        """Turn SPMD on, for the rest of this process, and make the mesh.

        Raises:
            SelectionError: the runtime has other devices.
        """
        import numpy

        xr = runtime.xla("runtime")
        if not xr.is_spmd():
            xr.use_spmd()
        count = int(xr.global_runtime_device_count())
        shape = self.mesh_shape or (count,)
        if torch.Size(shape).numel() != count:
            raise SelectionError(f"mesh_shape={shape} does not fit the {count} device(s) that torch_xla has.")
        names = (AXIS, "copies")[: len(shape)]
        mesh = runtime.xla("distributed.spmd").Mesh
        self._spmd_mesh = mesh(numpy.arange(count), shape, names)
        super().setup_environment()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Annotate each parameter: its longest dimension that can be split evenly is."""
        mark = runtime.xla("distributed.spmd").mark_sharding
        for parameter in module.parameters():
            mark(parameter, self._spmd_mesh, self._spec(parameter))
        return module

    def load_optimizer_state(
        self, optimizer: Optimizer | nn.Module, state: Mapping[str, Any], names: Mapping[nn.Parameter, str]
    ) -> None:
        """Restore the states, and annotate them as their parameters are."""
        super().load_optimizer_state(optimizer, state, names)
        assert isinstance(optimizer, Optimizer)
        mark = runtime.xla("distributed.spmd").mark_sharding
        for parameter, values in optimizer.state.items():
            for value in values.values():
                if (
                    isinstance(value, torch.Tensor)
                    and value.device == parameter.device
                    and value.shape == parameter.shape
                ):
                    mark(value, self._spmd_mesh, self._spec(parameter))

    def _spec(self, tensor: torch.Tensor) -> tuple[str | None, ...]:
        shards = self._spmd_mesh.mesh_shape[0]
        candidates = [dim for dim, size in enumerate(tensor.shape) if size % shards == 0 and size]
        if tensor.numel() < self.min_size or not candidates:
            return (None,) * tensor.dim()
        longest = max(candidates, key=lambda dim: tensor.shape[dim])
        return tuple(AXIS if dim == longest else None for dim in range(tensor.dim()))

    def _input_sharding(self) -> Any:
        """A batch is split along its first dimension, over all devices; what does not split evenly stays whole."""
        return _FirstDimension(self._spmd_mesh)


class _FirstDimension:
    """What torch_xla's loader asks how to shard each tensor of a batch."""

    minibatch = False

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self._make = runtime.xla("distributed.spmd").ShardingSpec

    def xla_spec(self, tensor: torch.Tensor) -> Any:
        """The sharding of ``tensor``, or None where it can't be split evenly."""
        if not tensor.dim() or tensor.shape[0] % self.mesh.mesh_shape[0]:
            return None
        whole = len(self.mesh.mesh_shape) > 1 and not tensor.shape[0] % int(self.mesh.size())
        first = tuple(self.mesh.axis_names) if whole else AXIS  # over copies of the model too
        return self._make(self.mesh, (first, *(None for _ in tensor.shape[1:]))).xla_spec(tensor)


class _WithDevices:
    """A selection with other devices: to SPMD, all of them are one."""

    def __init__(self, selection: Selection, devices: Any) -> None:
        self._selection, self.devices = selection, devices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selection, name)
