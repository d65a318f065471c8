"""Which part of a tensor a rank holds: the whole, or a box of it where it is sharded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poplin.errors import CheckpointError


def is_sharded_tensor(value: Any) -> bool:
    """Whether ``value`` is a DTensor, of which each rank holds a part."""
    module = sys.modules.get("torch.distributed.tensor")  # slow to import, and unneeded as long as nobody has
    return module is not None and isinstance(value, module.DTensor)


@dataclass(frozen=True)
class Part:
    """A box of a tensor.

    Args:
        shape: of the whole tensor.
        offsets: the box's first index in each dimension.
        local: the values of the box, on any device.
        replicable: whether other ranks may hold the same box with the same values.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: Tensor
    replicable: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extent of the box."""
        return tuple(self.local.shape)


def box_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """``(offsets, sizes)`` of this rank's box of a DTensor; None if this rank has no part in it.

    Raises:
        CheckpointError: its values are yet to be summed over ranks.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if tensor.device_mesh.get_coordinate() is None:
        return None
    if any(placement.is_partial() for placement in tensor.placements):
        raise CheckpointError(
            "A sharded tensor holds partial sums, not values: redistribute it before it is saved or restored."
        )
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offsets), tuple(sizes)


def part_of(tensor: Tensor) -> Part | None:
    """This rank's part of ``tensor``; None if it has none."""
    if not is_sharded_tensor(tensor):
        return Part(tuple(tensor.shape), (0,) * tensor.dim(), tensor.detach(), replicable=False)
    box = box_of(tensor)
    if box is None:
        return None
    offsets, sizes = box
    sharded: Any = tensor
    local = sharded.to_local().detach()
    if tuple(local.shape) != sizes:
        raise CheckpointError(
            f"A sharded tensor of shape {tuple(tensor.shape)} holds {tuple(local.shape)} on this rank, and its layout "
            f"says {sizes}."
        )
    return Part(tuple(tensor.shape), offsets, local, replicable=True)


def like_sharded(live: Any, local: Tensor) -> Tensor:
    """A DTensor of the layout of ``live`` with the values ``local``, which are moved to the mesh's device."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, live.device_mesh, live.placements, run_check=False, shape=live.shape, stride=_contiguous(live.shape)
    )


def view_key(tensor: Tensor) -> tuple[Any, ...] | None:
    """Equal for tensors that show the same values in memory (tied weights); None where that can't be told."""
    layout: tuple[Any, ...] = ()
    local = tensor
    if is_sharded_tensor(tensor):
        sharded: Any = tensor
        local = sharded.to_local()
        layout = (tuple(tensor.shape), id(sharded.device_mesh), tuple(sharded.placements))
    if not local.numel() or not local.data_ptr():  # a device that gives no addresses says 0 of each
        return None
    flags = (local.is_conj(), local.is_neg())
    return (local.device, local.data_ptr(), tuple(local.shape), local.stride(), local.dtype, *flags, *layout)


def on_cpu(tensor: Tensor) -> Tensor:
    """``tensor`` on the CPU, in C order, in a storage that holds nothing else."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a CPU tensor in C order, to read or to write."""
    memory: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(memory)


def _contiguous(shape: Any) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(tuple(shape)):
        strides.append(step)
        step *= max(1, int(extent))
    return tuple(reversed(strides))
