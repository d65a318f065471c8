"""The device mesh: how ranks are arranged, and which part of the data each of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

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


def make_mesh(device_type: str, sizes: Sequence[int], names: Sequence[str]) -> DeviceMesh:
    """A mesh over all ranks; a collective. One of a single dimension uses the default process group."""
    return init_device_mesh(device_type, tuple(sizes), mesh_dim_names=tuple(names))


def make_named_mesh(device_type: str, sizes: Sequence[int], names: Sequence[str]) -> NamedMesh:
    """As :func:`make_mesh`, a mesh that also knows Lightning's names."""
    ranks = torch.arange(dist.get_world_size()).view(*sizes)
    return NamedMesh(device_type, ranks, mesh_dim_names=tuple(names))


def data_dimensions(mesh: DeviceMesh) -> tuple[str, ...]:
    """The dimensions along which ranks get different data."""
    names = mesh.mesh_dim_names or ()
    return tuple(name for name in names if name in (REPLICATE, SHARD))


def destroy_groups(mesh: DeviceMesh) -> None:
    """Destroy the process groups that were made for ``mesh``; the default one isn't of them."""
    if not dist.is_initialized():
        return
    for dimension in range(mesh.ndim):
        group = mesh.get_group(dimension)
        if group is not dist.group.WORLD and group in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(group)
