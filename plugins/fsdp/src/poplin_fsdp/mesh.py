"""The device mesh: how ranks are arranged, and which part of the data each of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, debug

from poplin.errors import ArgumentTypeError, ArgumentValueError, SelectionError

REPLICATE, SHARD, TENSOR = "dp_replicate", "dp_shard", "tp"
#: Lightning's names of dimensions → ours.
_ALIASES = {"data_parallel": SHARD, "tensor_parallel": TENSOR}


class NamedMesh(DeviceMesh):
    """A mesh whose dimensions are also found by the names that Lightning gives them."""

    def __getitem__(self, names: Any) -> DeviceMesh:
        """The part along these dimensions."""
        if isinstance(names, str):
            return super().__getitem__(_ALIASES.get(names, names))
        return super().__getitem__(tuple(_ALIASES.get(name, name) for name in names))


def as_sizes(device_mesh: Any) -> tuple[int, int] | DeviceMesh | None:
    """``device_mesh`` as the user may give it: None, ``(replicate, shard)``, or a mesh.

    Raises:
        ArgumentTypeError, ArgumentValueError: it is none of these.
    """
    if device_mesh is None or isinstance(device_mesh, DeviceMesh):
        return device_mesh
    if not isinstance(device_mesh, (tuple, list)) or len(device_mesh) != 2:
        raise ArgumentTypeError(
            f"device_mesh takes (number of replicas, processes that share one), or a DeviceMesh, and got "
            f"{device_mesh!r}."
        )
    replicate, shard = device_mesh
    if not all(isinstance(size, int) and size > 0 for size in (replicate, shard)):
        raise ArgumentValueError(f"device_mesh={device_mesh!r}: both sizes are whole numbers above 0.")
    return replicate, shard


def check_sizes(sizes: Sequence[int], world_size: int, names: Sequence[str], argument: str) -> None:
    """Refuse a mesh that does not have a place for each process.

    Raises:
        SelectionError: the sizes' product is another.
    """
    product = 1
    for size in sizes:
        product *= size
    if product != world_size:
        told = " × ".join(f"{size} ({name})" for size, name in zip(sizes, names, strict=True))
        raise SelectionError(
            f"{argument} makes a mesh of {told} = {product} processes, and there are {world_size}. Choose sizes whose "
            "product is the number of processes."
        )


def make_mesh(
    device_type: str, sizes: Sequence[int], names: Sequence[str], timeout: timedelta | None = None
) -> NamedMesh:
    """A mesh over all ranks; a collective. A dimension of all ranks uses the default process group.

    There is one mesh of each shape for as long as somebody uses it, because torch takes equal ones for the same, and
    may compute with the one what belongs to the other. Each call needs one :func:`release_mesh`.

    Args:
        device_type: of its devices.
        sizes: of its dimensions.
        names: of its dimensions.
        timeout: of the collectives along its dimensions; None takes torch's default.
    """
    key = (device_type, tuple(sizes), tuple(names))
    known = _meshes.get(key)
    if known is None or not _is_alive(known.mesh):
        known = _meshes[key] = _Shared(_new_mesh(*key, timeout))
    known.users += 1
    return known.mesh


def release_mesh(mesh: DeviceMesh) -> None:
    """Use a mesh of :func:`make_mesh` no more. With its last user the process groups that were made for it go."""
    key = next((key for key, shared in _meshes.items() if shared.mesh is mesh), None)
    if key is None:
        return  # somebody has destroyed its groups, and another mesh has taken its place
    _meshes[key].users -= 1
    if _meshes[key].users == 0:
        del _meshes[key]
        _destroy_groups(mesh)
        _forget_meshes()


@dataclass
class _Shared:
    """A mesh, and how many use it now."""

    mesh: NamedMesh
    users: int = 0


#: Device type, sizes and names → the mesh.
_meshes: dict[tuple[str, tuple[int, ...], tuple[str, ...]], _Shared] = {}


def _new_mesh(device_type: str, sizes: tuple[int, ...], names: tuple[str, ...], timeout: timedelta | None) -> NamedMesh:
    ranks = torch.arange(dist.get_world_size()).view(*sizes)
    # not by init_device_mesh, whose groups have torch's default timeout, whatever that of the default group is
    groups = [_new_group(ranks, dimension, name, timeout) for dimension, name in enumerate(names)]
    mesh = DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=names)
    mesh.__class__ = NamedMesh
    assert isinstance(mesh, NamedMesh)
    return mesh


def _new_group(ranks: torch.Tensor, dimension: int, name: str, timeout: timedelta | None) -> Any:
    """This rank's process group along ``dimension``."""
    rows = ranks.movedim(dimension, -1).reshape(-1, ranks.shape[dimension]).tolist()
    if len(rows) == 1:
        return dist.group.WORLD
    made = [dist.new_group(row, timeout=timeout, group_desc=f"mesh_{name}") for row in rows]
    return next(group for group, row in zip(made, rows, strict=True) if dist.get_rank() in row)


def data_dimensions(mesh: DeviceMesh) -> tuple[str, ...]:
    """The dimensions along which ranks get different data."""
    names = mesh.mesh_dim_names or ()
    return tuple(name for name in names if name in (REPLICATE, SHARD))


def _destroy_groups(mesh: DeviceMesh) -> None:
    """Destroy the process groups that were made for ``mesh``; the default one isn't of them."""
    if _is_alive(mesh):
        for dimension in range(mesh.ndim):
            if (group := mesh.get_group(dimension)) is not dist.group.WORLD:
                dist.destroy_process_group(group)


def _is_alive(mesh: DeviceMesh) -> bool:
    """Whether nobody has destroyed its groups, or the default one with all others, behind our back."""
    known = dist.distributed_c10d._world.pg_map
    try:
        return all(mesh.get_group(dimension) in known for dimension in range(mesh.ndim))
    except (RuntimeError, ValueError):  # torch knows no group of that name
        return False


def _forget_meshes() -> None:
    """Let torch forget which mesh the result of an operation is on.

    It remembers that by the arguments of the operation. Those of a later Fabric on an equal mesh would give results on
    this one, whose process groups are gone.
    """
    clear = getattr(debug, "_clear_sharding_prop_cache", None)  # of all caches, where torch has several
    if clear is None:
        clear = DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear
    clear()
