"""Parallelism by a function, or a plan, of the user's: tensor parallel, sharded, or both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from poplin.errors import ArgumentTypeError, ArgumentValueError, SelectionError, UsageError
from poplin.precision import Precision
from poplin.strategies import Memory, memory_of
from poplin_fsdp.grouping import groups_of
from poplin_fsdp.mesh import SHARD, TENSOR, check_sizes, make_mesh
from poplin_fsdp.planning import gathered_bytes
from poplin_fsdp.plans import apply_plan, as_plan, plan_of
from poplin_fsdp.precision import FSDPPrecision
from poplin_fsdp.root import ShardedRoot
from poplin_fsdp.selecting import as_policy, selected
from poplin_fsdp.sharded import ShardedStrategy

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator
    from poplin.checkpoint import CheckpointIO
    from poplin.environments import ClusterEnvironment
    from poplin.selection import Selection

#: Changes the module in place by torch's parallelism, and returns it.
Parallelize = Callable[[Any, DeviceMesh], nn.Module]
_SIZES = ("data_parallel_size", "tensor_parallel_size")


class ModelParallelStrategy(ShardedStrategy):
    """Tensor parallelism, sharded data parallelism, or both, as a function of yours applies them.

    ``parallelize_fn(module, mesh)`` gets the module and a mesh of two dimensions, ``mesh["dp_shard"]`` and
    ``mesh["tp"]`` (``"data_parallel"`` and ``"tensor_parallel"`` are the same); it calls ``parallelize_module``,
    ``fully_shard`` and the like, and returns the module. Or give a ``plan``: the strategy applies it along ``tp``, and
    shards along ``dp_shard``. Without either, the module must bring a plan as its attribute ``parallel_plan``.

    Processes that share their data (those along ``tp``) get the same batches. Parameters and buffers start as rank 0's.

    Args:
        parallelize_fn: applies the parallelism.
        data_parallel_size: processes along ``dp_shard``; "auto" is the number of nodes.
        tensor_parallel_size: processes along ``tp``; "auto" is all that remain.
        save_distributed_checkpoint: True: checkpoints are folders to which each rank writes its part; False: one file.
        process_group_backend: name of the backend for the devices' tensors; None asks the accelerator.
        timeout: of collectives and of connecting, a timedelta or seconds; None takes torch's default.
        plan: ``{name of a submodule, with * for any part: a parallel style of torch's}``.
        auto_wrap_policy: with a plan, the submodules that are gathered as a unit of their own, as for FSDPStrategy.
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision: what is fixed on the strategy
            object; None leaves the choice to Fabric.

    Raises:
        ArgumentTypeError, ArgumentValueError: both a function and a plan, or sizes that can't be meant.
    """

    def __init__(
        self,
        parallelize_fn: Parallelize | None = None,
        data_parallel_size: int | str = "auto",
        tensor_parallel_size: int | str = "auto",
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        *,
        plan: Mapping[str, Any] | None = None,
        auto_wrap_policy: Any = None,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend=process_group_backend,
            timeout=timeout,
            state_dict_type="sharded" if save_distributed_checkpoint else "full",
        )
        if parallelize_fn is not None and not callable(parallelize_fn):
            raise ArgumentTypeError(
                f"parallelize_fn takes a function of (module, mesh), and got a {type(parallelize_fn).__name__}."
                + (" A plan goes by keyword: plan={...}." if isinstance(parallelize_fn, Mapping) else "")
            )
        if parallelize_fn is not None and plan is not None:
            raise ArgumentValueError("Both parallelize_fn and plan say how to parallelise: give one of them.")
        for name, size in zip(_SIZES, (data_parallel_size, tensor_parallel_size), strict=True):
            if size != "auto" and not (isinstance(size, int) and size > 0):
                raise ArgumentValueError(f"{name}={size!r} is neither 'auto' nor a whole number above 0.")
        self.parallelize_fn = parallelize_fn
        self.plan = None if plan is None else as_plan(plan)
        self.auto_wrap_policy = as_policy(auto_wrap_policy, "auto_wrap_policy")
        self.data_parallel_size = data_parallel_size
        self.tensor_parallel_size = tensor_parallel_size

    # --- the mesh

    def check(self, selection: Selection) -> None:
        """The mesh needs a place for each process.

        Raises:
            SelectionError: the sizes' product is another; or no process-group backend serves the devices.
        """
        super().check(selection)
        nodes = selection.num_nodes
        world_size = len(selection.devices) * nodes
        check_sizes(self._sizes(world_size, nodes), world_size, _SIZES, type(self).__name__)

    def _sizes(self, world_size: int, num_nodes: int) -> tuple[int, int]:
        data, tensor = self.data_parallel_size, self.tensor_parallel_size
        if data == "auto":
            data = num_nodes if tensor == "auto" else max(1, world_size // int(tensor))
        if tensor == "auto":
            tensor = max(1, world_size // int(data))
        return int(data), int(tensor)

    def _make_mesh(self) -> DeviceMesh:
        sizes = self._sizes(self.world_size, self.num_nodes)
        check_sizes(sizes, self.world_size, _SIZES, type(self).__name__)
        return make_mesh(self._device_type(), sizes, (SHARD, TENSOR), self.timeout)

    def make_precision(self, name: str) -> Precision | None:
        precision = super().make_precision(name)
        if self.parallelize_fn is not None and isinstance(precision, FSDPPrecision):
            return precision.by_autocast()
        return precision

    # --- setup

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Parallelise ``module`` in place; one without parameters is returned as it is, on the device.

        Raises:
            SelectionError: nothing says how.
        """
        if (ready := self._ready(module)) is not None:
            return ready
        plan = None if self.parallelize_fn is not None else self._plan_for(module)
        return self.run_engine(f"setup of {type(module).__name__}", self._parallelise, module, plan)

    def _plan_for(self, module: nn.Module) -> dict[str, Any]:
        plan = self.plan if self.plan is not None else plan_of(module)
        if plan is None:
            raise SelectionError(
                f"{type(self).__name__} was told neither a function nor a plan, and {type(module).__name__} brings "
                "none (an attribute parallel_plan). Give one: ModelParallelStrategy(parallelize_fn=...), or "
                "ModelParallelStrategy(plan={'layers.*.up': ColwiseParallel(), ...})."
            )
        return plan

    def _parallelise(self, module: nn.Module, plan: Mapping[str, Any] | None) -> nn.Module:
        assert self._mesh is not None
        before = self._start(module)
        if self.parallelize_fn is not None:
            result = self.parallelize_fn(module, self._mesh)
            if result is not module:
                raise UsageError(
                    f"parallelize_fn returned {'None' if result is None else 'another module'}: it must change the "
                    "module that it gets in place, and return it."
                )
            root: ShardedRoot = UserShardedRoot(module, self.run_engine)
            root.contains(self._roots)
        else:
            assert plan is not None
            apply_plan(module, self._mesh[TENSOR], plan)
            root = self._sharded_root(module)
        return self._finish(root, module, before)

    def planned_memory(self, module: nn.Module, make_optimizer: Callable[..., Any] | None = None) -> Memory:
        """This process's parts; what a function of yours gathers at the peak is not known, and not in it."""
        assert self._mesh is not None
        if self.parallelize_fn is not None:
            return memory_of(self.parallelize_fn(module, self._mesh), make_optimizer)
        apply_plan(module, self._mesh[TENSOR], self._plan_for(module))
        gathered = 0
        if self.data_world_size > 1:
            groups = groups_of(module, selected(module, self.auto_wrap_policy))
            gathered = gathered_bytes(groups, self._policies()[0].param_dtype, False)
        self._sharded_root(module)
        return dataclasses.replace(memory_of(module, make_optimizer), communication=gathered)

    def _sharded_root(self, module: nn.Module) -> ShardedRoot:
        """Sharded along the data dimension, if there is one, or parameters are to be gathered in another format."""
        assert self._mesh is not None
        if self.data_world_size == 1 and self._policies()[0].param_dtype is None:
            return ShardedRoot(module, self.run_engine)
        return self._fully_sharded(module, self._mesh[SHARD], selected(module, self.auto_wrap_policy), {})


class UserShardedRoot(ShardedRoot):
    """Around a module that the user's own function has sharded: a marked method goes through its hooks."""

    def method(self, name: str) -> Callable[..., Any]:
        """A callable that runs the method ``name`` as a forward."""
        module = self.module
        if not isinstance(module, FSDPModule):
            return super().method(name)
        state: Any = module._get_fsdp_state()  # what torch's register_fsdp_forward_method does, on the module itself

        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = state._pre_forward(module, args, kwargs)
            return state._post_forward(module, args, getattr(module, name)(*args, **kwargs))

        return lambda *args, **kwargs: self._run(self._what, run, *args, **kwargs)
