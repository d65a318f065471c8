"""The interface of a strategy: how one run spreads over devices and processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.extension import Extension
from poplin.strategies.clipped import ClippedParameters, clip_norm
from poplin.strategies.memory import MakeOptimizer, Memory, memory_of
from poplin.strategies.module_names import module_state_dict, with_module_names
from poplin.strategies.moving import move_module
from poplin.strategies.optimizer_state import (
    ParameterNames,
    load_optimizer_state_by_name,
    optimizer_state_by_name,
)
from poplin.utilities.apply_func import move_data_to_device
from poplin.utilities.init import EmptyInit

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, ReduceOp
    from torch.distributed.device_mesh import DeviceMesh

    from poplin.accelerators.accelerator import Accelerator
    from poplin.checkpoint.checkpoint_io import CheckpointIO, StoragePath
    from poplin.environments.environment import ClusterEnvironment
    from poplin.launchers.launcher import Launcher
    from poplin.precision.precision import Precision
    from poplin.selection import Selection

T = TypeVar("T")


class Strategy(Extension, ABC):
    """Spreads modules, optimizers and data over devices and processes, and brings results together.

    ``module`` is what :meth:`setup_module` returned and ``optimizer`` what :meth:`setup_optimizer` returned,
    unless a method says otherwise; ``names`` is ``{parameter: the user's name}``. Getters and setters of state
    are collectives: if one rank raises, all raise. Must be given: :attr:`root_device`. The defaults suit one plain
    device.

    Args:
        accelerator, parallel_devices, checkpoint_io, precision: what the user fixed on the strategy object; each is
            an explicit source for the selection, None leaves the choice to it.
    """

    #: Whether processes must exist before anything is used.
    needs_launch: bool = False
    #: Whether module and optimizers must be set up in one call.
    requires_joint_setup: bool = False
    #: Name of the launcher it wants, or None.
    launcher_name: str | None = None
    #: Name of the checkpoint IO it writes with unless the user chose one, or None for the core's default.
    checkpoint_io_name: str | None = None
    #: Whether it moves batches itself, so that a set-up dataloader doesn't.
    owns_data_movement: bool = False
    #: Whether :meth:`setup_module` moves the module itself, part by part: the whole may not fit on the device.
    moves_at_setup: bool = False
    #: Whether setup changes the user's module in place (its class or its parameters).
    mutates_module: bool = False
    #: Whether a set-up module can be pickled and deep-copied.
    picklable: bool = True
    #: Whether running the module must go through what :meth:`setup_module` returned.
    needs_forward: bool = False
    #: Whether backward must go through :meth:`backward`, so that a plain ``loss.backward()`` is an error.
    owns_backward: bool = False
    #: Whether its engine flattens parameters: state methods then get the engine instead of the optimizer.
    owns_parameters: bool = False
    #: Whether :meth:`no_backward_sync` has an effect (or a backward pass has nothing to synchronise).
    supports_no_backward_sync: bool = True
    #: Whether ranks that share a batch take the step that one process would take with all of it. False for local SGD
    #: and its like, whose ranks step with gradients of their own and average parameters now and then.
    averages_gradients: bool = True

    def __init__(
        self,
        *,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.accelerator = accelerator
        self.parallel_devices = list(parallel_devices) if parallel_devices is not None else None
        self.checkpoint_io = checkpoint_io
        self.precision = precision
        self.cluster_environment: ClusterEnvironment | None = None
        self.launcher: Launcher | None = None

    # --- selection

    def bind(self, selection: Selection) -> None:
        """Take the chosen objects: accelerator, devices, environment, precision, checkpoint IO and launcher.

        Called once by the selection, when every choice has been made and checked.
        """
        self.accelerator = selection.accelerator
        self.parallel_devices = list(selection.devices)
        self.cluster_environment = selection.environment
        self.precision = selection.precision
        self.checkpoint_io = selection.checkpoint_io
        self.launcher = selection.launcher

    def check(self, selection: Selection) -> None:
        """Veto a combination that this strategy can't serve.

        Called by the selection when every choice is made, before anything is bound. The default accepts all.

        Raises:
            SelectionError: with what to do instead.
        """

    def make_precision(self, name: str) -> Precision | None:
        """A precision of its own for ``name`` (the canonical one), or None to take the registry's.

        Called by the selection, unless the user gave a precision object.
        """
        return None

    def accepts_precision(self, precision: Precision) -> str | None:
        """None, or the reason why this precision can't be used here. Called by the selection.

        The default refuses a precision that scales the loss where the strategy owns backward: it would train
        unscaled in silence.
        """
        if precision.scales_loss and self.owns_backward:
            return f"{type(self).__name__} runs the backward pass itself and would leave out the loss scaling"
        return None

    # --- place in the run

    @property
    @abstractmethod
    def root_device(self) -> torch.device:
        """The device of this process."""

    @property
    def global_rank(self) -> int:
        """Rank of this process among all."""
        return 0

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node."""
        return 0

    @property
    def node_rank(self) -> int:
        """Rank of this node."""
        return 0

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return 1

    @property
    def is_global_zero(self) -> bool:
        """Whether this is global rank 0."""
        return self.global_rank == 0

    @property
    def data_rank(self) -> int:
        """Which part of the data this process gets, of :attr:`data_world_size`; the world's rank by default."""
        return self.global_rank

    @property
    def data_world_size(self) -> int:
        """Over how many parts the data is split; the world size by default."""
        return self.world_size

    @property
    def data_group(self) -> ProcessGroup | None:
        """The process group of those who share the data; None means all processes."""
        return None

    @property
    def mesh(self) -> DeviceMesh | None:
        """The device mesh, its dimensions named among pp, dp_replicate, dp_shard, cp, tp, ep; or None."""
        return None

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any] | None:
        """``num_replicas`` and ``rank`` for a sampler, or None where the data isn't split."""
        if self.data_world_size == 1:
            return None
        return {"num_replicas": self.data_world_size, "rank": self.data_rank}

    # --- processes and devices

    def setup_environment(self) -> None:
        """Make the device current and bring up the process group.

        Called in each process once it is launched: by the constructor of Fabric where nothing needs launching.
        """
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)

    def init_process_group(self, timeout: timedelta | float | None = None) -> None:
        """Bring up the process group. Called by :meth:`setup_environment` of parallel strategies. Nothing here.

        Args:
            timeout: of collectives, a timedelta or seconds; None takes the strategy's own.
        """

    def module_to_device(self, module: nn.Module) -> None:
        """Move ``module`` in place; tied parameters stay tied.

        Called by setup, after the precision and before :meth:`setup_module`.
        """
        move_module(module, self.root_device)

    def batch_to_device(self, batch: T, device: torch.device | None = None) -> T:
        """Move a nested collection of tensors (and of anything with ``.to(device)``). Called for each batch."""
        return move_data_to_device(batch, device if device is not None else self.root_device)

    # --- setup

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Wrap the user's module. Called by setup, after names are taken, precision is applied and it was moved."""
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Wrap the user's optimizer, whose parameters are those of the set-up module. Called by setup."""
        return optimizer

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: Sequence[Optimizer], scheduler: Any | None = None
    ) -> tuple[nn.Module, list[Optimizer], Any | None]:
        """Wrap module and optimizers (and a learning-rate scheduler) together. Called by ``Fabric.setup``."""
        return self.setup_module(module), [self.setup_optimizer(optimizer) for optimizer in optimizers], scheduler

    def original_module(self, wrapped: nn.Module) -> nn.Module:
        """The user's module inside what :meth:`setup_module` returned. Called by setup, save and load."""
        return wrapped

    def planned_memory(self, module: nn.Module, make_optimizer: MakeOptimizer | None = None) -> Memory:
        """What one process would hold of ``module`` when it is trained. Called by ``poplin estimate`` only.

        The strategy is bound and its environment set up, over a process group of torch's that only pretends
        (``fake``) to have the other ranks; nothing will be run. The default is a whole copy in each process: override
        it where parameters are split, or more is kept.

        Args:
            module: on the meta device, converted by the precision; it may be changed.
            make_optimizer: makes the optimizer of a list of parameters; None leaves optimizer states out.
        """
        return memory_of(module, make_optimizer)

    def forward_method(self, wrapped: nn.Module, name: str) -> Callable[..., Any]:
        """A callable that runs the method ``name`` as a forward of ``wrapped``. Called for marked methods.

        Where an engine has one door, wrap ``poplin.wrappers.MethodDispatch(module)`` and use its ``through``.
        """
        method: Callable[..., Any] = getattr(wrapped, name)
        return method

    def process_dataloader(self, dataloader: Any) -> Any:
        """Wrap a dataloader, or change how it yields; a plain one is fine. Called once for each that is set up."""
        return dataloader

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """Context in which new tensors are on the right device. Called by ``Fabric.init_tensor``."""
        return self.root_device

    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Context in which new modules are on the right device. Called by ``Fabric.init_module``.

        Args:
            empty_init: True leaves the weights uninitialised (they will be loaded); None leaves it to the strategy.
        """
        stack = ExitStack()
        stack.enter_context(self.root_device)
        if empty_init:
            stack.enter_context(EmptyInit())
        return stack

    def module_sharded_context(self) -> AbstractContextManager[Any]:
        """Context in which modules are sharded as they are made. Called by the deprecated ``Fabric.sharded_model``."""
        return nullcontext()

    # --- steps

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass. Called by ``Fabric.backward``, unless nobody has a part in it."""
        assert self.precision is not None
        self.precision.pre_backward(tensor, module)
        self.precision.backward(tensor, module, *args, **kwargs)
        self.precision.post_backward(tensor, module)

    def optimizer_step(self, optimizer: Optimizer, model: nn.Module | None = None, **kwargs: Any) -> Any:
        """Step, and return what the optimizer returned (the closure's loss). Called by the set-up optimizer's ``step``.

        Args:
            optimizer: the optimizer to step.
            model: what :meth:`setup_module` returned, where optimizer and module were set up together.
            kwargs: handed on; a ``closure`` among them.
        """
        assert self.precision is not None
        return self.precision.optimizer_step(optimizer, **kwargs)

    def zero_grad(self, optimizer: Optimizer, model: nn.Module | None = None, set_to_none: bool = True) -> None:
        """Forget gradients. Called by the set-up optimizer's ``zero_grad``."""
        optimizer.zero_grad(set_to_none=set_to_none)

    def step_was_skipped(self, optimizer: Optimizer, model: nn.Module | None = None) -> bool:
        """Whether the last step moved nothing (loss scaling met a gradient that isn't finite).

        Called by the schedulers that went through ``Fabric.setup``.
        """
        assert self.precision is not None
        return self.precision.step_was_skipped(optimizer)

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[Any]:
        """Context without gradient synchronisation. Called by ``Fabric.no_backward_sync`` for each module."""
        return nullcontext()

    def clip_gradients_norm(
        self,
        module: nn.Module | None,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clip by the total norm; gradients are unscaled first. Called by ``Fabric.clip_gradients``.

        Args:
            module: only its parameters are clipped; None takes all of the optimizer's.
            optimizer: holds the parameters.
            max_norm: the greatest total norm.
            norm_type: 2.0, ``"inf"``, ...
            error_if_nonfinite: raise where the total norm is not finite; under loss scaling it is returned instead.

        Returns:
            The total norm before clipping, a scalar tensor.

        Raises:
            NonFiniteGradientsError: see ``error_if_nonfinite`` (a RuntimeError).
        """
        assert self.precision is not None
        self.precision.unscale_gradients(optimizer)
        return clip_norm(
            self._clipped_parameters(module, optimizer),
            max_norm,
            float(norm_type),
            error_if_nonfinite and not self.precision.scales_loss,
            module,
        )

    def clip_gradients_value(self, module: nn.Module | None, optimizer: Optimizer, clip_val: float) -> None:
        """Clip gradients, unscaled first, to ``[-clip_val, clip_val]``. Called by ``Fabric.clip_gradients``."""
        assert self.precision is not None
        self.precision.unscale_gradients(optimizer)
        nn.utils.clip_grad_value_(self._clipped_parameters(module, optimizer), clip_val)

    def _clipped_parameters(self, module: nn.Module | None, optimizer: Optimizer) -> list[nn.Parameter]:
        assert self.precision is not None
        stepped = self.precision.main_params(optimizer)
        if module is None:
            return list(stepped)
        lists: ClippedParameters | None = self.__dict__.get("_clipped")
        if lists is None:  # a strategy of somebody's may not run the constructor above
            lists = self._clipped = ClippedParameters()
        return lists.of(module, optimizer, stepped)

    # --- collectives: nothing to do on one device

    def all_gather(self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False) -> Tensor:
        """``tensor`` of every rank in a new first dimension: ``(world size, *shape)``. As it is at world size 1.

        Called by ``Fabric.all_gather`` for each tensor.

        Args:
            tensor: the same shape and dtype on every rank, else every rank raises CollectiveError.
            group: a process group; None means all.
            sync_grads: whether gradients flow back through it.
        """
        return tensor

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: ReduceOp | str | None = "mean") -> Tensor:
        """Reduce over ranks, in place, and return it; only the mean of integers is a new float tensor.

        Called by ``Fabric.all_reduce`` for each tensor.

        Args:
            tensor: the same shape and dtype on every rank.
            group: a process group; None means :attr:`data_group` for a mean and all otherwise.
            reduce_op: "mean"/"avg", "sum", "min", "max", "product", ... or a ReduceOp.
        """
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Wait until every rank is here; names that differ across ranks are reported. Called by ``Fabric.barrier``."""

    def broadcast(self, obj: T, src: int = 0) -> T:
        """``obj`` of rank ``src`` on every rank: a tensor at torch's own cost, or anything that pickles.

        Called by ``Fabric.broadcast``, and wherever ranks must agree.
        """
        return obj

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether every rank (``all``), or any rank, says True; the same answer on each. Called by save and load."""
        return decision

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:
        """Context that rank 0 leaves before the others enter. Called by ``Fabric.rank_zero_first``.

        The others wait as long as it lives; its exception, or its death, reaches all of them.

        Args:
            local: the local rank 0 of each node goes first, instead of global rank 0.
        """
        return nullcontext()

    # --- state. Collectives: every rank calls them, and if one raises, all raise.

    def get_module_state_dict(self, module: nn.Module, sharded: bool = False) -> dict[str, Any]:
        """The state dict of a set-up module under the user's own names. Called by ``Fabric.save``.

        Args:
            module: what :meth:`setup_module` returned.
            sharded: each rank's part (DTensors, or whole tensors that only one rank holds) instead of full values.
        """
        return module_state_dict(self.original_module(module))

    def load_module_state_dict(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        """Restore a set-up module from full or sharded values under the user's names. Called by ``Fabric.load``."""
        original = self.original_module(module)
        original.load_state_dict(with_module_names(original, state), strict=strict)

    def names_elsewhere(self, module: nn.Module) -> Collection[str]:
        """The user's names of what other ranks hold of a set-up module, and this one doesn't: pipeline stages.

        Called by ``Fabric.load``: a checkpoint that has them fits this rank too. The default is none.
        """
        return ()

    def parameter_shapes(self, module: nn.Module) -> Mapping[str, tuple[int, ...]]:
        """Full shapes under the user's names, which the module's own tensors don't show. Called by ``Fabric.load``.

        Asked only if :attr:`owns_parameters`; a name that isn't in it is compared with nothing. The default is empty.

        Args:
            module: what :meth:`setup_module` returned.
        """
        return {}

    def parameter_names(self, module: nn.Module) -> ParameterNames:
        """The user's names of parameters in :meth:`param_groups` that the user's module has no more.

        Called by ``Fabric.save`` and ``load``, only if :attr:`owns_parameters`. The default is none.

        Args:
            module: what :meth:`setup_module` returned.
        """
        return {}

    def param_groups(self, optimizer: Optimizer | nn.Module) -> list[dict[str, Any]]:
        """The optimizer's groups with the user's own parameters in them. Called by ``Fabric.save`` and ``load``.

        Args:
            optimizer: what :meth:`setup_optimizer` returned; the engine, if :attr:`owns_parameters`, whose optimizer
                holds other parameters than the user's by then.
        """
        assert isinstance(optimizer, Optimizer)
        return optimizer.param_groups

    def get_optimizer_state(
        self, optimizer: Optimizer | nn.Module, names: ParameterNames, sharded: bool = False
    ) -> dict[str, Any]:
        """The optimizer's state by parameter name, as ``poplin.strategies.optimizer_state_by_name``.

        Called by ``Fabric.save``.

        Args:
            optimizer: what :meth:`setup_optimizer` returned; the engine, if :attr:`owns_parameters`.
            names: for every parameter of it.
            sharded: as in :meth:`get_module_state_dict`.
        """
        assert isinstance(optimizer, Optimizer)
        return optimizer_state_by_name(optimizer, names)

    def load_optimizer_state(
        self, optimizer: Optimizer | nn.Module, state: Mapping[str, Any], names: ParameterNames
    ) -> None:
        """Restore what :meth:`get_optimizer_state` of any strategy returned. Called by ``Fabric.load``, and by setup

        for the state that an optimizer had before, where :attr:`owns_parameters`.
        """
        assert isinstance(optimizer, Optimizer)
        load_optimizer_state_by_name(optimizer, state, names)

    def state_dict(self) -> dict[str, Any]:
        """What the strategy itself keeps between steps, and must survive a restart: an outer optimizer, a counter.

        Called by ``Fabric.save`` and ``save_async`` on every rank, and before :meth:`load_state_dict` for a way back.
        A collective, which may use others: all ranks call it, in the same order, and what can fail on one rank alone
        comes after the last of them. Rank 0's is what is saved, and every rank gets that back: what is to survive must
        be the same on every rank, or gathered. It must not change the training. Tensors and plain values only, no
        sharded tensors. The default keeps nothing, and costs a save nothing.

        The checkpoint says which class wrote it, as ``module:qualname`` (a script's is ``__main__``), and only a
        strategy of exactly that class gets it back. Any other loads the checkpoint as ever, and leaves this out; one
        that keeps a state itself says so in a warning.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned on rank 0. The default does nothing.

        Called by ``Fabric.load`` on every rank, if an optimizer is loaded too (weights alone resume no training) and
        the checkpoint has a state of this class. Some modules and optimizers are restored after it: don't look at them.
        If it raises on a rank, it is called once more on every rank, with what :meth:`state_dict` returned before, be
        it empty. A collective, as that one.

        Args:
            state: what was read has its tensors on the CPU.
        """

    def save_checkpoint(
        self,
        path: StoragePath,
        state: dict[str, Any],
        storage_options: Any | None = None,
        filter: dict[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """Write ``state`` to ``path``, on the rank(s) that write. Called by ``Fabric.save`` on every rank.

        The core has turned every object in ``state`` into its state dict, has applied ``filter``, and sees to it that
        all ranks raise if one does.

        Args:
            path: a local path or an fsspec URL.
            state: state dicts and plain values.
            storage_options: handed on to the checkpoint IO.
            filter: what was applied, for engines that write files of their own.
        """
        assert self.checkpoint_io is not None
        if self.is_global_zero or self.checkpoint_io.sharded:
            self.checkpoint_io.save_checkpoint(state, path, storage_options=storage_options)

    def load_checkpoint(
        self,
        path: StoragePath,
        state: dict[str, Any] | None = None,
        strict: bool = True,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read the checkpoint at ``path``. Called by ``Fabric.load`` on every rank; the core restores the objects.

        Args:
            path: a local path or an fsspec URL.
            state: templates (state dicts as they are now) for formats that read into place.
            strict: whether what is missing or unexpected is an error.
            weights_only: None and True read tensors and plain values only.
        """
        assert self.checkpoint_io is not None
        return self.checkpoint_io.load_checkpoint(path, map_location="cpu", weights_only=weights_only)
