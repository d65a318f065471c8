"""What the strategies of this package have in common: steps, clipping and state of modules made of DTensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from poplin.errors import UsageError
from poplin.strategies import (
    load_optimizer_state_by_name,
    optimizer_state_by_name,
)
from poplin_fsdp.averaging import Averaging, cant_be_sharded, is_replicated
from poplin_fsdp.clip import clip_norm, clip_value
from poplin_fsdp.gathered import forget_gradients, sharded_counterparts
from poplin_fsdp.grouping import Group, groups_of
from poplin_fsdp.meshed import MeshStrategy
from poplin_fsdp.parameters import Before, check_dtypes, make_contiguous
from poplin_fsdp.planning import described
from poplin_fsdp.precision import FSDPPrecision, norms_with_statistics, policy_for
from poplin_fsdp.root import NoSync, ShardedRoot
from poplin_fsdp.state import Gathering, place, placed
from poplin_fsdp.undo import ShardingBackup

if TYPE_CHECKING:
    pass


class ShardedStrategy(MeshStrategy):
    """Modules whose parameters are DTensors: each rank holds parts of them. A subclass shards."""

    needs_forward = True
    mutates_module = True
    picklable = False

    # --- setup

    @property
    def moves_at_setup(self) -> bool:  # type: ignore[override]
        """Whether sharding moves each parameter, by its data. That of an out-of-tree device can't stand in a parameter
        that was made on the CPU, so modules are moved before.
        """
        here = torch.empty(0, device=self.root_device)
        return bool(torch._has_compatible_shallow_copy_type(torch.empty(0), here))

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

    def _ready(self, module: nn.Module) -> nn.Module | None:
        """What runs ``module``, if there is nothing to shard: it has no parameters, or was set up before."""
        if next(module.parameters(), None) is None:
            return module.to(self.root_device)
        return next((root for root in self._roots if root.module is module), None)

    def _start(self, module: nn.Module) -> Before:
        """What comes before anything is sharded: all ranks start from rank 0's values; a collective.

        Raises:
            UsageError: initial values are lost, or something hangs on a parameter that sharding replaces.
        """
        before = Before(module, self._deferred.start(module))
        make_contiguous(module)
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
        backup = ShardingBackup(module)
        try:
            return self._shard_groups(module, mesh, chosen, options)
        except BaseException:
            backup.restore()
            raise

    def _shard_groups(
        self, module: nn.Module, mesh: DeviceMesh, chosen: list[nn.Module], options: Mapping[str, Any]
    ) -> ShardedRoot:
        root = ShardedRoot(module, self.run_engine)
        root.contains(self._roots)
        done = root.modules_set_up_before()
        chosen = [one for one in chosen if id(one.__dict__) not in done]
        ignored = {parameter for parameter in module.parameters() if cant_be_sharded(parameter)}
        ignored |= {parameter for parameter in module.parameters() if not is_replicated(parameter)}  # set up before
        ignored |= set(options.get("ignored_params") or ())
        if not any(parameter.requires_grad for parameter in module.parameters()):
            # no backward would ever give up what was gathered for the root
            options = {**options, "reshard_after_forward": options.get("reshard_after_forward") is not False}
        policy, root_policy = self._policies()
        if policy.param_dtype in (torch.float16, torch.bfloat16):
            norms = [norm for norm in norms_with_statistics(module) if id(norm.__dict__) not in done]
            chosen = [*(one for one in chosen if one not in norms), *norms]
        groups = groups_of(root, chosen)
        check_dtypes(module, groups, ignored)
        self._note_sharding(module, groups, len(chosen), len(ignored))
        for group in groups:
            moved = [parameter for unit in group for parameter in unit.parameters() if parameter not in ignored]
            places = [parameter.device for parameter in moved]
            fully_shard(
                group if len(group) > 1 else group[0],
                **{
                    **options,
                    "mesh": mesh,
                    "mp_policy": root_policy if root in group else policy_for(group, policy),
                    "ignored_params": ignored or None,
                },
            )
            for parameter, place_before in zip(moved, places, strict=True):
                if parameter.device != place_before:  # whoever still holds it must not keep the whole on the device
                    parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        return root

    def _note_sharding(self, module: nn.Module, groups: list[Group], chosen: int, whole: int) -> None:
        if self._trace is None:
            return
        self._trace.note(f"sharding of {type(module).__name__}", *described(len(groups), chosen, whole))

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
        try:
            self.run_engine("backward", super().backward, tensor, module, *args, **kwargs)
        except BaseException:
            for root in self._roots:
                root.recover()
                forget_gradients(root)
            raise

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
