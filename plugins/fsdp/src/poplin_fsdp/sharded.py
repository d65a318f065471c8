"""What the strategies of this package have in common: steps, clipping and state of modules made of DTensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from poplin.errors import ArgumentValueError, SelectionError, UsageError
from poplin.precision import Precision
from poplin.strategies import (
    ParallelStrategy,
    load_optimizer_state_by_name,
    optimizer_state_by_name,
)
from poplin_fsdp.averaging import Averaging, cant_be_sharded, is_replicated
from poplin_fsdp.clip import clip_norm, clip_value
from poplin_fsdp.gathered import sharded_counterparts
from poplin_fsdp.grouping import groups_of
from poplin_fsdp.materialise import Deferral, RngState
from poplin_fsdp.mesh import data_dimensions, destroy_groups
from poplin_fsdp.parameters import Before
from poplin_fsdp.precision import FSDPPrecision, make_precision
from poplin_fsdp.root import NoSync, ShardedRoot
from poplin_fsdp.state import Gathering, place, placed

if TYPE_CHECKING:
    from poplin.selection import Selection


class ShardedStrategy(ParallelStrategy):
    """Modules whose parameters are DTensors: each rank holds parts of them.

    A subclass makes the mesh and shards.

    Args:
        state_dict_type: ``"sharded"`` (each rank writes its part of a checkpoint folder) or ``"full"`` (one file).
        **kwargs: those of ParallelStrategy.

    Raises:
        ArgumentValueError: another ``state_dict_type``.
    """

    needs_forward = True
    mutates_module = True
    picklable = False
    moves_at_setup = True

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
        """Only its own precisions may convert the module or scale the loss: others know no sharded parameters."""
        if isinstance(precision, FSDPPrecision) or not (precision.converts_module or precision.scales_loss):
            return super().accepts_precision(precision)
        return (
            f"a {type(precision).__name__} knows no sharded parameters. Pass the name, precision="
            f"{precision.precision!r}, or FSDPPrecision({precision.precision!r})"
        )

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
            names = data_dimensions(self._mesh)
            if names != self._mesh.mesh_dim_names:
                self._data_mesh = self._data_part(self._mesh, names)

    def _make_mesh(self) -> DeviceMesh:
        raise NotImplementedError

    def _data_part(self, mesh: DeviceMesh, names: tuple[str, ...]) -> DeviceMesh:
        return mesh[names[0]] if len(names) == 1 else mesh[names]._flatten("dp")

    def teardown(self) -> None:
        mesh, self._mesh, self._data_mesh = self._mesh, None, None
        self._roots.clear()
        self._deferral = None
        if mesh is not None and self._makes_groups:
            destroy_groups(mesh)
        super().teardown()

    #: Whether the groups of the mesh are of this strategy's making.
    _makes_groups = True

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"_mesh": None, "_data_mesh": None, "_deferral": None, "_roots": weakref.WeakSet()}
        return {**super().__getstate__(), **own}

    def _device_type(self) -> str:
        return self.accelerator.device_type if self.accelerator is not None else self.root_device.type

    # --- setup

    def original_module(self, wrapped: nn.Module) -> nn.Module:
        return wrapped.module if isinstance(wrapped, ShardedRoot) else wrapped

    def forward_method(self, wrapped: nn.Module, name: str) -> Callable[..., Any]:
        if isinstance(wrapped, ShardedRoot):
            return wrapped.method(name)
        return super().forward_method(wrapped, name)

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Let an optimizer that was made after a forward hold what is trained, instead of what was gathered for it.

        Raises:
            UsageError: it holds a gathered parameter of which nobody knows where it belongs.
        """
        counterparts = sharded_counterparts(self._roots)
        stale: list[Tensor] = []
        for group in optimizer.param_groups:
            for number, parameter in enumerate(group["params"]):
                sharded = counterparts.get(id(parameter))
                if sharded is not None:
                    group["params"][number] = sharded
                    if parameter in optimizer.state:
                        state = optimizer.state.pop(parameter)
                        optimizer.state[sharded] = {
                            key: place(value, sharded) if isinstance(value, Tensor) else value
                            for key, value in state.items()
                        }
                elif not isinstance(parameter, DTensor) and _was_gathered(parameter):
                    stale.append(parameter)
        if stale:
            raise UsageError(
                f"{len(stale)} of the parameters of {type(optimizer).__name__} (of shape {tuple(stale[0].shape)}, for "
                "one) are copies that were gathered for a forward, and not what is trained. Make the optimizer right "
                "after fabric.setup_module(), before the module runs."
            )
        return optimizer

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

    def _start(self, module: nn.Module) -> Before:
        """What comes before anything is sharded: all ranks start from rank 0's values; a collective.

        Raises:
            UsageError: initial values are lost, or something hangs on a parameter that sharding replaces.
        """
        before = Before(module, self._deferred.start(module))
        self._broadcast_values(module)
        return before

    def _fully_sharded(
        self, module: nn.Module, mesh: DeviceMesh, chosen: list[nn.Module], options: Mapping[str, Any]
    ) -> ShardedRoot:
        """``fully_shard`` on the chosen submodules and on the whole.

        Args:
            module: the user's.
            mesh: its data dimensions.
            chosen: submodules that are gathered as units of their own.
            options: for ``fully_shard``.
        """
        root = ShardedRoot(module, self.run_engine)
        ignored = {parameter for parameter in module.parameters() if cant_be_sharded(parameter)}
        ignored |= {parameter for parameter in module.parameters() if not is_replicated(parameter)}  # set up before
        ignored |= set(options.get("ignored_params") or ())
        policy, root_policy = self._policies()
        for group in groups_of(root, chosen):
            fully_shard(
                group if len(group) > 1 else group[0],
                **{
                    **options,
                    "mesh": mesh,
                    "mp_policy": root_policy if root in group else policy,
                    "ignored_params": ignored or None,
                },
            )
        return root

    def _finish(
        self, root: ShardedRoot, module: nn.Module, before: Before, device: torch.device | None = None
    ) -> nn.Module:
        """What comes after: the rest is moved, what has no values gets them, and whole gradients will be averaged.

        Args:
            root: what runs the module.
            module: the user's.
            before: what :meth:`_start` returned.
            device: of sharded parameters, if it is another one (offloaded).
        """
        on_device(module, self.root_device)
        if before.deferred is not None:
            here = self.root_device
            self._deferred.finish(
                before.deferred, lambda tensor: device if device and isinstance(tensor, DTensor) else here
            )
        before.keep_attributes()
        replicated = [parameter for parameter in module.parameters() if is_replicated(parameter)]
        root.averaging = Averaging(replicated, self.data_group, self.data_world_size)
        root.contains(self._roots)
        self._roots.add(root)
        return root

    def _policies(self) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
        """For each unit, and for the module as a whole, whose result alone has another format."""
        if isinstance(self.precision, FSDPPrecision):
            return self.precision.policy, self.precision.root_policy
        return MixedPrecisionPolicy(), MixedPrecisionPolicy()

    def _broadcast_values(self, module: nn.Module) -> None:
        """Let parameters and buffers start as rank 0's, as they do under data parallelism; a collective."""
        if self.world_size == 1:
            return
        seen: set[int] = set()
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) in seen or tensor.is_meta or isinstance(tensor, DTensor):
                continue
            seen.add(id(tensor))
            self._from_rank_zero(tensor)

    def _from_rank_zero(self, tensor: Tensor) -> None:
        data = tensor.data
        if not data.is_contiguous() or data.device.type != self.root_device.type:
            moved = data.to(self.root_device).contiguous()
            dist.broadcast(moved, 0)
            data.copy_(moved)
        else:
            dist.broadcast(data, 0)

    # --- steps

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass; where a rank is missing in it, the error says which."""
        self.run_engine("backward", super().backward, tensor, module, *args, **kwargs)

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[Any]:
        """Context in which gradients stay this rank's own, and whole: it takes the memory of all of them."""
        return NoSync(module) if enabled and isinstance(module, ShardedRoot) else nullcontext()

    def clip_gradients_norm(
        self,
        module: nn.Module | None,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        assert self.precision is not None
        self.precision.unscale_gradients(optimizer)
        return clip_norm(
            self._clipped_parameters(module, optimizer),
            max_norm,
            float(norm_type),
            error_if_nonfinite and not self.precision.scales_loss,
            self.root_device,
        )

    def clip_gradients_value(self, module: nn.Module | None, optimizer: Optimizer, clip_val: float) -> None:
        assert self.precision is not None
        self.precision.unscale_gradients(optimizer)
        clip_value(self._clipped_parameters(module, optimizer), clip_val)

    # --- state

    def get_module_state_dict(self, module: nn.Module, sharded: bool = False) -> dict[str, Any]:
        """DTensors under the user's names, or their whole values on rank 0, and nothing elsewhere."""
        _reshard(module)
        state = super().get_module_state_dict(module, sharded)
        if sharded:
            return state
        gather = Gathering(self.is_global_zero)
        for name, value in state.items():
            if isinstance(value, Tensor):
                state[name] = gather(value)
        return state if self.is_global_zero else {}

    def load_module_state_dict(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        _reshard(module)
        live = super().get_module_state_dict(module, sharded=True)
        super().load_module_state_dict(module, placed(state, live), strict)

    def get_optimizer_state(
        self, optimizer: Optimizer | nn.Module, names: Mapping[nn.Parameter, str], sharded: bool = False
    ) -> dict[str, Any]:
        assert isinstance(optimizer, Optimizer)
        if sharded:
            return optimizer_state_by_name(optimizer, names)
        state = optimizer_state_by_name(optimizer, names, Gathering(self.is_global_zero))
        return state if self.is_global_zero else {**state, "state": {}}

    def load_optimizer_state(
        self, optimizer: Optimizer | nn.Module, state: Mapping[str, Any], names: Mapping[nn.Parameter, str]
    ) -> None:
        assert isinstance(optimizer, Optimizer)
        load_optimizer_state_by_name(optimizer, state, names, place)


def _was_gathered(parameter: Tensor) -> bool:
    """Whether ``parameter`` is memory that sharding has filled for a forward: it is empty by now, or will be."""
    return parameter.numel() > 0 and not parameter.is_meta and parameter.untyped_storage().size() == 0


def _reshard(module: nn.Module) -> None:
    if isinstance(module, ShardedRoot):
        module.reshard()


def on_device(module: nn.Module, device: torch.device) -> None:
    """Move what has values and is not sharded."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not tensor.is_meta and not isinstance(tensor, DTensor) and tensor.device != device:
            tensor.data = tensor.data.to(device)
