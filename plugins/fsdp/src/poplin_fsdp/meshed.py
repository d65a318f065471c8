"""The part of these strategies that has to do with ranks: the mesh, the data, the precision, new modules."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch.distributed.device_mesh import DeviceMesh

from poplin.errors import ArgumentValueError, SelectionError, UsageError
from poplin.precision import Precision
from poplin.strategies import (
    ParallelStrategy,
)
from poplin_fsdp.materialise import Deferral, RngState
from poplin_fsdp.mesh import data_dimensions, release_mesh
from poplin_fsdp.precision import PRECISIONS, FSDPPrecision, make_precision
from poplin_fsdp.root import ShardedRoot

if TYPE_CHECKING:
    from poplin.selection import Selection


class MeshStrategy(ParallelStrategy):
    """Ranks on a device mesh, and modules that are made on the meta device.

    A subclass makes the mesh.

    Args:
        state_dict_type: ``"sharded"`` (each rank writes its part of a checkpoint folder) or ``"full"`` (one file).
        **kwargs: those of ParallelStrategy.

    Raises:
        ArgumentValueError: another ``state_dict_type``.
    """

    #: Whether each use of a parameter is of the whole one, gathered; otherwise layers compute with their parts.
    _computes_whole: ClassVar[bool] = False

    def __init__(self, *, state_dict_type: str = "sharded", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if state_dict_type not in ("sharded", "full"):
            raise ArgumentValueError(
                f"state_dict_type={state_dict_type!r} is neither 'sharded' (a folder, each rank writes its part) nor "
                "'full' (one file)."
            )
        self.state_dict_type = state_dict_type
        self.checkpoint_io_name = "sharded" if state_dict_type == "sharded" else "torch"
        self._mesh: DeviceMesh | None = None
        self._data_mesh: DeviceMesh | None = None
        self._deferral: Deferral | None = None
        #: What was set up.
        self._roots: weakref.WeakSet[ShardedRoot] = weakref.WeakSet()

    # --- selection

    def check(self, selection: Selection) -> None:
        """The devices need a process-group backend.

        Raises:
            SelectionError: the accelerator has none, and none was given.
        """
        super().check(selection)
        accelerator = selection.accelerator
        if accelerator.collective_backend is None and self.process_group_backend is None:
            raise SelectionError(
                f"{type(self).__name__} gathers parameters through a process group, and the accelerator "
                f"{accelerator.name()!r} names no backend for it (collective_backend). Use a strategy made for this "
                "accelerator, or give process_group_backend=... ."
            )

    def make_precision(self, name: str) -> Precision | None:
        return make_precision(name)

    def accepts_precision(self, precision: Precision) -> str | None:
        """Others than its own scale no loss, and convert nothing unless it is shardable and gathered for each use."""
        converts = precision.converts_module and not (precision.shardable and self._computes_whole)
        if isinstance(precision, FSDPPrecision) or not (converts or precision.scales_loss):
            return super().accepts_precision(precision)
        known = ", ".join(map(repr, PRECISIONS))
        if precision.precision in PRECISIONS:
            known = f"the name: precision={precision.precision!r}, or FSDPPrecision({precision.precision!r})"
        kind = type(precision).__name__
        return f"a {kind} changes the module or the loss, and knows no sharded parameters. Pass {known}"

    # --- place in the run

    @property
    def mesh(self) -> DeviceMesh | None:
        """The device mesh, once the processes are there."""
        return self._mesh

    @property
    def device_mesh(self) -> DeviceMesh:
        """The device mesh, by the name that Lightning's users know.

        Raises:
            UsageError: the processes are not there yet.
        """
        if self._mesh is None:
            raise UsageError("The device mesh exists once the processes do: call fabric.launch() first.")
        return self._mesh

    @property
    def data_rank(self) -> int:
        """The rank among those that get different data."""
        return self.global_rank if self._data_mesh is None else self._data_mesh.get_local_rank()

    @property
    def data_world_size(self) -> int:
        """How many ranks get different data."""
        return self.world_size if self._data_mesh is None else self._data_mesh.size()

    @property
    def data_group(self) -> Any:
        """The process group of the ranks that get different data; None means all."""
        return None if self._data_mesh is None else self._data_mesh.get_group()

    def setup_environment(self) -> None:
        """Bring up the process group, and make the device mesh over it."""
        super().setup_environment()
        if self._mesh is None:
            self._mesh = self._make_mesh()
            self._note_mesh(self._mesh)
            names = data_dimensions(self._mesh)
            if names != self._mesh.mesh_dim_names:
                self._data_mesh = self._data_part(self._mesh, names)

    def _note_mesh(self, mesh: DeviceMesh) -> None:
        if self._trace is not None:
            sizes = " × ".join(
                f"{size} {name}" for size, name in zip(mesh.shape, mesh.mesh_dim_names or (), strict=False)
            )
            self._trace.note("device mesh", sizes, f"made by {type(self).__name__}" if self._makes_groups else "given")

    def _make_mesh(self) -> DeviceMesh:
        raise NotImplementedError

    def _data_part(self, mesh: DeviceMesh, names: tuple[str, ...]) -> DeviceMesh:
        return mesh[names[0]] if len(names) == 1 else mesh[names]._flatten("dp")

    def teardown(self) -> None:
        mesh, self._mesh, self._data_mesh = self._mesh, None, None
        self._roots.clear()
        self._deferral = None
        if mesh is not None and self._makes_groups:
            release_mesh(mesh)
        super().teardown()

    @property
    def _makes_groups(self) -> bool:
        """Whether the groups of the mesh are of this strategy's making."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_mesh": None, "_data_mesh": None, "_deferral": None}
        del state["_roots"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._roots = weakref.WeakSet()

    def _device_type(self) -> str:
        return self.accelerator.device_type if self.accelerator is not None else self.root_device.type

    # --- new modules

    @property
    def _deferred(self) -> Deferral:
        if self._deferral is None:
            self._deferral = Deferral(self.root_device, self._rng())
        return self._deferral

    def _rng(self) -> RngState:
        accelerator = self.accelerator
        if self.root_device.type == "cpu" or accelerator is None or accelerator.rng_state() is None:
            return torch.get_rng_state, torch.set_rng_state
        return cast(RngState, (accelerator.rng_state, accelerator.set_rng_state))

    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Context in which new modules are on the meta device, and get their values when they are set up.

        These are the values that one process would give them after the same seed.

        Args:
            empty_init: True: weights get no values (they will be loaded); False: modules are made for real, whole, on
                the device.
        """
        if empty_init is False:
            return super().module_init_context(empty_init)
        return self._deferred.making(bool(empty_init))

    def module_sharded_context(self) -> AbstractContextManager[Any]:
        return self.module_init_context()
