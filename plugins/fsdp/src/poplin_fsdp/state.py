"""Values of sharded tensors: gathered, or cut to the part that this rank holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

_EMPTY = torch.empty(0)


class Gathering:
    """Makes whole tensors of sharded ones, on the CPU of one rank; every rank takes part.

    A tensor that several names stand for (tied weights) is gathered once, and stays one.

    Args:
        keeps: whether this rank is to have the values.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._done: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """The values of ``tensor``; nothing of them on the ranks that are not to have any."""
        if not isinstance(tensor, DTensor):
            return tensor if self._keeps else _EMPTY
        local = tensor._local_tensor
        # the storage tells: a rank without values of a tensor has no address for it
        key = (local.untyped_storage()._cdata, local.storage_offset(), tuple(tensor.shape), tensor.placements)
        if key not in self._done:
            with torch.no_grad():
                sharded: Any = tensor.detach()
                full: Tensor = sharded.full_tensor()
            self._done[key] = (
                tensor,
                full.cpu() if self._keeps else _EMPTY,
            )
        return self._done[key][1]


def local_part(full: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> Tensor:
    """What this rank holds of ``full``.

    Dimensions are cut as torch cuts them: one mesh dimension after the other, but for those that were sharded last
    although they stand first in the mesh (strided ones).

    Args:
        full: the whole tensor.
        mesh: the mesh.
        placements: one for each of its dimensions.
    """
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    dimensions = [index for index, placement in enumerate(placements) if getattr(placement, "dim", None) is not None]
    strided = [index for index in dimensions if getattr(placements[index], "split_factor", 1) > 1]
    order = [index for index in dimensions if index not in strided] + strided[::-1]
    part = full
    for index in order:
        dim, size = placements[index].dim, mesh.size(index)
        chunks = part.chunk(size, dim)
        part = chunks[coordinate[index]] if coordinate[index] < len(chunks) else part.narrow(dim, 0, 0)
    return part


def place(value: Tensor, like: Any) -> Tensor:
    """``value``, a whole tensor, sharded as ``like`` is; as it is if ``like`` isn't sharded, or has another shape.

    Nothing is sent: each rank cuts its own part.
    """
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    part = local_part(value.detach(), like.device_mesh, like.placements)
    return like_sharded(part.to(like.device), like)


def like_sharded(local: Tensor, like: DTensor) -> DTensor:
    """A DTensor of the layout of ``like`` whose part on this rank is ``local``, on the device where that is."""
    if local.device.type != like.device_mesh.device_type:  # offloaded
        return DTensor(local.contiguous(), like._spec, requires_grad=False)
    return DTensor.from_local(
        local.contiguous(),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def placed(state: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """``state``, in which whole tensors may stand, sharded as the tensors of the same names in ``live`` are."""
    done: dict[int, Tensor] = {}
    result: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            if id(value) not in done:
                done[id(value)] = place(value, live.get(name))
            result[name] = done[id(value)]
        else:
            result[name] = value
    return result
