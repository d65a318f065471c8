"""The strategy: parameters, gradients and optimizer states are split over all processes, by torch's ``fully_shard``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from poplin.errors import ArgumentValueError
from poplin.strategies import Memory, memory_of
from poplin.utilities import rank_zero_deprecation
from poplin_fsdp.checkpointing import checkpoint_activations
from poplin_fsdp.grouping import groups_of
from poplin_fsdp.mesh import REPLICATE, SHARD, as_sizes, check_sizes, make_mesh
from poplin_fsdp.planning import gathered_bytes
from poplin_fsdp.policies import mixed_precision_policy, offload_policy, shard_options, sharding_of
from poplin_fsdp.selecting import as_policy, selected
from poplin_fsdp.sharded import ShardedStrategy

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator
    from poplin.checkpoint import CheckpointIO
    from poplin.environments import ClusterEnvironment
    from poplin.precision import Precision
    from poplin.selection import Selection


class FSDPStrategy(ShardedStrategy):
    """Fully sharded data parallelism, on any device type with a process-group backend, the CPU included.

    Each process trains on its own part of the data, and holds its part of parameters, gradients and optimizer states.
    Before a layer runs its parameters are gathered, afterwards they are given up again. Parameters and buffers start
    as rank 0's.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision: what is fixed on the strategy
            object; None leaves the choice to Fabric.
        process_group_backend: name of the backend for the devices' tensors; None asks the accelerator.
        timeout: of collectives and of connecting, a timedelta or seconds; None takes torch's default.
        cpu_offload: whether parameters, gradients and optimizer states lie on the CPU between their uses; or a
            ``CPUOffloadPolicy``.
        mixed_precision: a ``MixedPrecisionPolicy`` in place of the precision's own.
        auto_wrap_policy: which submodules are gathered as a unit of their own: module classes (``{Block}``), a function
            of a module, or a policy of torch.distributed.fsdp.wrap. None: the module is one unit.
        activation_checkpointing: the old name of ``activation_checkpointing_policy``, for module classes.
        activation_checkpointing_policy: which submodules compute their activations again in the backward pass.
        sharding_strategy: "FULL_SHARD"; "SHARD_GRAD_OP" (parameters stay gathered between forward and backward);
            "HYBRID_SHARD" (split within groups of processes that replicate one another: see ``device_mesh``).
        state_dict_type: "sharded": checkpoints are folders to which each rank writes its part; "full": one file.
        device_mesh: ``(number of replicas, processes that share one)``, or a DeviceMesh. With "HYBRID_SHARD" the
            default is one replica on each node.
        fsdp_kwargs: for ``fully_shard``: ``reshard_after_forward``, ``shard_placement_fn``, ``ignored_params``.

    Raises:
        ArgumentTypeError, ArgumentValueError: what ``fully_shard`` has no counterpart for, with what to do instead.
    """

    _computes_whole = True

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        precision: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        cpu_offload: Any = None,
        mixed_precision: Any = None,
        auto_wrap_policy: Any = None,
        activation_checkpointing: Any = None,
        activation_checkpointing_policy: Any = None,
        sharding_strategy: Any = "FULL_SHARD",
        state_dict_type: str = "sharded",
        device_mesh: tuple[int, int] | DeviceMesh | None = None,
        checkpoint_io: CheckpointIO | None = None,
        **fsdp_kwargs: Any,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend=process_group_backend,
            timeout=timeout,
            state_dict_type=state_dict_type,
        )
        if activation_checkpointing is not None:
            if activation_checkpointing_policy is not None:
                raise ArgumentValueError(
                    "activation_checkpointing is the old name of activation_checkpointing_policy: give one of them."
                )
            rank_zero_deprecation(
                "FSDPStrategy(activation_checkpointing=...) is now called activation_checkpointing_policy."
            )
            activation_checkpointing_policy = activation_checkpointing
        sharding = sharding_of(sharding_strategy)
        self.auto_wrap_policy = as_policy(auto_wrap_policy, "auto_wrap_policy")
        self.activation_checkpointing_policy = as_policy(
            activation_checkpointing_policy, "activation_checkpointing_policy"
        )
        self.sharding_strategy = sharding_strategy
        self.hybrid = sharding.hybrid or device_mesh is not None
        self.sizes = as_sizes(device_mesh)
        options = shard_options(fsdp_kwargs)
        self.mixed_precision = mixed_precision_policy(
            mixed_precision if mixed_precision is not None else options.pop("mp_policy", None)
        )
        self.cpu_offload = cpu_offload if cpu_offload is not None else options.pop("offload_policy", None)
        offload_policy(self.cpu_offload, False)  # refused now, not later
        self.fsdp_kwargs = {"reshard_after_forward": sharding.reshard_after_forward, **options}

    # --- the mesh

    def check(self, selection: Selection) -> None:
        """The mesh needs a place for each process.

        Raises:
            SelectionError: the sizes' product is another; or no process-group backend serves the devices.
        """
        super().check(selection)
        if isinstance(self.sizes, tuple):
            world_size = len(selection.devices) * selection.num_nodes
            check_sizes(self.sizes, world_size, ("replicas", "processes that share one"), f"device_mesh={self.sizes}")

    def _make_mesh(self) -> DeviceMesh:
        if isinstance(self.sizes, DeviceMesh):
            return self.sizes
        if not self.hybrid:
            return make_mesh(self._device_type(), (self.world_size,), (SHARD,), self.timeout)
        sizes = self.sizes or (self.num_nodes, self.world_size // self.num_nodes)
        check_sizes(sizes, self.world_size, ("replicas", "processes that share one"), f"device_mesh={sizes}")
        return make_mesh(self._device_type(), sizes, (REPLICATE, SHARD), self.timeout)

    @property
    def _makes_groups(self) -> bool:
        return not isinstance(self.sizes, DeviceMesh)

    # --- setup

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Shard ``module`` in place; one without parameters is returned as it is, on the device."""
        if (ready := self._ready(module)) is not None:
            return ready
        return self.run_engine(f"setup of {type(module).__name__}", self._shard, module)

    def _shard(self, module: nn.Module) -> nn.Module:
        assert self._mesh is not None
        chosen = selected(module, self.auto_wrap_policy)
        before = self._start(module)
        checkpoint_activations(module, self.activation_checkpointing_policy)
        options = {**self.fsdp_kwargs, "offload_policy": self._offload()}
        root = self._fully_sharded(module, self._mesh, chosen, options)
        return self._finish(root, module, before, torch.device("cpu") if self._offloads else None)

    def planned_memory(self, module: nn.Module, make_optimizer: Callable[..., Any] | None = None) -> Memory:
        """This process's parts, and at the peak what is gathered of others'."""
        assert self._mesh is not None
        chosen = selected(module, self.auto_wrap_policy)
        keeps_all = self.fsdp_kwargs["reshard_after_forward"] is False
        gathered = gathered_bytes(groups_of(module, chosen), self._policies()[0].param_dtype, keeps_all)
        self._fully_sharded(module, self._mesh, chosen, {**self.fsdp_kwargs, "offload_policy": self._offload()})
        memory = dataclasses.replace(memory_of(module, make_optimizer), communication=gathered)
        return memory.offloaded("parameters", "gradients", "optimizer") if self._offloads else memory

    def _policies(self) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
        """For each unit, and for the module as a whole, whose result alone has another format."""
        if self.mixed_precision is not None:
            given = self.mixed_precision
            inner = dataclasses.replace(given, output_dtype=None)
            return inner, dataclasses.replace(given, output_dtype=given.output_dtype or torch.float32)
        return super()._policies()

    def _offload(self) -> Any:
        return offload_policy(self.cpu_offload, pin_memory=self.root_device.type != "cpu")

    @property
    def _offloads(self) -> bool:
        return isinstance(self._offload(), CPUOffloadPolicy)
