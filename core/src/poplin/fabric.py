"""``Fabric``: the façade. Each method checks its arguments and hands on; no decision is taken here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poplin import lifecycle
from poplin.accelerators.accelerator import Accelerator
from poplin.callbacks import Callbacks, as_list, discovered_callbacks
from poplin.checkpoint import state as checkpoint_state
from poplin.checkpoint.checkpoint_io import StoragePath
from poplin.data.metrics import gather_for_metrics
from poplin.data.setup import setup_dataloaders
from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    MissingLoggerError,
    UsageError,
)
from poplin.loggers.metrics import to_numbers
from poplin.precision.precision import Precision
from poplin.rank_zero import rank_zero_deprecation
from poplin.seed import seed_everything
from poplin.selection import Request, Selection, reader_for, released_on_error, select, select_loggers
from poplin.strategies.collectives import gather_nested, reduce_nested
from poplin.strategies.strategy import Strategy
from poplin.utilities.apply_func import move_data_to_device
from poplin.wrappers import setup as wrapping
from poplin.wrappers.clip import clip_gradients
from poplin.wrappers.setups import Setups
from poplin.wrappers.sync import no_backward_sync
from poplin.wrappers.unwrapping import unwrap
from poplin.wrappers.usage import memory_report

T = TypeVar("T")


class Fabric:
    """Runs your own training loop on any hardware, with any parallelism, at any precision.

    What the names below mean is decided by plugins; ``poplin plugins`` lists the installed ones.

    Args:
        accelerator: a name ("cpu", "gpu", ...), "auto", or an Accelerator.
        strategy: a name, "auto", or a Strategy.
        devices: a count, indices (``[0, 1]`` or ``"0,1"``), -1 for all, or "auto".
        num_nodes: number of machines.
        precision: a name such as "32-true", "16-mixed", "bf16-mixed", "64-true", or the older 16, 32, 64, "bf16".
        plugins: one or several of Precision, ClusterEnvironment, CheckpointIO, Launcher, as objects or registered
            names; at most one of each kind.
        callbacks: one object, or a list, tuple, set or iterator of them.
        loggers: a registered name, an object with ``log_metrics``, or a list, tuple, set or iterator of these.

    Raises:
        SelectionError: no run can be made of these arguments. Nothing is left behind.
        ArgumentTypeError, ArgumentValueError: one of them can't be meant.
    """

    #: In a checkpoint each rank has a state of its own: see :meth:`state_dict`.
    per_rank_state = True
    #: Restored once more when all else is: what is restored meanwhile may draw random numbers.
    restored_last = True

    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: int | str | list[int] = "auto",
        num_nodes: int = 1,
        precision: str | int | Precision | None = None,
        plugins: Any | None = None,
        callbacks: Any | None = None,
        loggers: Any | None = None,
    ) -> None:
        request = Request.read(
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            plugins=plugins,
        )
        if request.under_cli and _overrides_run(type(self)):
            raise UsageError(
                f"{type(self).__name__} overrides run(), which launches the processes; under the command line they "
                "exist already. Start the script with `python`, or move the code of run() to a function of its own."
            )
        own_callbacks = as_list(callbacks)
        self._selection: Selection = select(request)
        with released_on_error(self._selection):
            self._loggers: list[Any] = select_loggers(loggers, self._selection)
            found, notes = discovered_callbacks(own_callbacks)
            for distribution, note in notes:
                self._selection.trace.note("callbacks", note, reason=f"callbacks factory of {distribution}")
        self._callbacks = Callbacks([*own_callbacks, *found], fire=self.call)
        self._setups = Setups(self.strategy, self.precision, self._callbacks)
        self._life = lifecycle.Life()
        lifecycle.created(self)

    # --- what was chosen

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator."""
        return self._selection.accelerator

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        return self._selection.strategy

    @property
    def precision(self) -> Precision:
        """The precision."""
        return self._selection.precision

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.strategy.root_device

    @property
    def global_rank(self) -> int:
        """Rank of this process among all."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """Rank of this node."""
        return self.strategy.node_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.strategy.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this is global rank 0."""
        return self.strategy.is_global_zero

    @property
    def loggers(self) -> list[Any]:
        """The loggers, in the order in which they were given."""
        return list(self._loggers)

    @property
    def logger(self) -> Any:
        """The first logger.

        Raises:
            MissingLoggerError: there is none (an IndexError).
        """
        if not self._loggers:
            raise MissingLoggerError('This Fabric has no logger. Give it one: Fabric(loggers="csv").')
        return self._loggers[0]

    @property
    def callbacks(self) -> tuple[Any, ...]:
        """The callbacks, in the order in which they are called."""
        return tuple(self._callbacks)

    @property
    def launched(self) -> bool:
        """Whether the processes that this Fabric needs exist."""
        return self._life.launched

    @property
    def should_stop(self) -> bool:
        """Whether the run is about to be ended from outside; the same answer at the same read on every rank.

        True at most 16 reads after any rank got SIGTERM, SIGUSR1 or its scheduler's notice. The first read (or a
        callback with ``on_preempt``) arms it: before that, signals keep their meaning.
        """
        return lifecycle.should_stop(self)

    def explain(self, memory: bool = False) -> str:
        """What was chosen, by which plugin of which distribution and version, why, and what was passed over and why.

        Args:
            memory: add what this process holds of each module and optimizer that is set up, without activations.
                ``poplin estimate`` tells it beforehand, and for any world size.
        """
        trace = self._selection.trace.render()
        return f"{trace}\n{memory_report(self._setups)}" if memory else trace

    # --- setup

    def setup(
        self,
        module: nn.Module,
        *optimizers: Optimizer,
        scheduler: Any | None = None,
        move_to_device: bool = True,
        _reapply_compile: bool = True,
    ) -> Any:
        """Set up a module and its optimizers: precision, device, strategy, and your own ``torch.compile`` again.

        Args:
            module: your model.
            optimizers: those that step it.
            scheduler: a learning-rate scheduler that must not advance on a step that loss scaling skipped.
            move_to_device: whether to move the module.

        Returns:
            The module; with optimizers the tuple ``(module, *optimizers)``, with a scheduler as its last item.

        Raises:
            AlreadySetUpError: one of them is set up already (a ValueError).
            ArgumentTypeError: not a module, or not an optimizer.
            NotLaunchedError: ``launch()`` comes first.
        """
        lifecycle.require_processes(self, "setup")
        wrapped, wrapped_optimizers, wrapped_scheduler = wrapping.setup_module_and_optimizers(
            module,
            list(optimizers),
            scheduler,
            setups=self._setups,
            move_to_device=move_to_device,
            reapply_compile=_reapply_compile,
        )
        self._after_setup(wrapped, wrapped_optimizers)
        if not optimizers and scheduler is None:
            return wrapped
        return (wrapped, *wrapped_optimizers, *(() if scheduler is None else (wrapped_scheduler,)))

    def setup_module(self, module: nn.Module, move_to_device: bool = True, _reapply_compile: bool = True) -> Any:
        """Set up a module alone, before its optimizers are made (needed where parameters are sharded).

        Raises:
            As :meth:`setup`; and UsageError if the strategy sets up module and optimizers only together.
        """
        lifecycle.require_processes(self, "setup_module")
        wrapped = wrapping.setup_module(
            module, setups=self._setups, move_to_device=move_to_device, reapply_compile=_reapply_compile
        )
        self._after_setup(wrapped, [])
        return wrapped

    def setup_optimizers(self, *optimizers: Optimizer) -> Any:
        """Set up optimizers whose modules have gone through :meth:`setup_module`.

        Returns:
            The optimizer, or a tuple of them in order.

        Raises:
            As :meth:`setup`; ArgumentValueError without any.
        """
        lifecycle.require_processes(self, "setup_optimizers")
        wrapped = wrapping.setup_optimizers(list(optimizers), setups=self._setups)
        return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)

    def setup_dataloaders(
        self,
        *dataloaders: Any,
        use_distributed_sampler: bool = True,
        move_to_device: bool = True,
        uneven: str = "pad",
        shard_iterable: bool = False,
        replace_sampler: bool | None = None,
    ) -> Any:
        """Set up dataloaders: each rank gets its part of the data, workers are seeded, batches are moved.

        Args:
            dataloaders: one or several.
            use_distributed_sampler: whether to split the data over ranks. A DistributedSampler of yours is left as is.
            move_to_device: whether batches are moved to the device.
            uneven: what to do with samples that don't divide evenly: "pad" repeats some, "drop" leaves some out,
                "exact" gives ranks different numbers.
            shard_iterable: whether an IterableDataset is split too (each rank takes every n-th sample).
            replace_sampler: the old name of ``use_distributed_sampler``.

        Returns:
            The dataloader, or a list of them in order.
        """
        lifecycle.require_processes(self, "setup_dataloaders")
        if replace_sampler is not None:
            rank_zero_deprecation("setup_dataloaders(replace_sampler=...) is now called use_distributed_sampler.")
            use_distributed_sampler = replace_sampler
        if not dataloaders:
            raise ArgumentValueError("setup_dataloaders() got no dataloader: give it at least one.")
        wrapped = setup_dataloaders(
            dataloaders,
            strategy=self.strategy,
            use_distributed_sampler=use_distributed_sampler,
            move_to_device=move_to_device,
            uneven=uneven,
            shard_iterable=shard_iterable,
            trace=self._selection.trace,
        )
        self._setups.dataloaders += wrapped
        return wrapped[0] if len(wrapped) == 1 else wrapped

    def _after_setup(self, wrapped: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        original = unwrap(wrapped)
        if hasattr(original, "_fabric"):  # what looks like a LightningModule is told, and is a callback from now on
            original._fabric = self
            original._fabric_optimizers = list(optimizers)
            self._callbacks.add(original)
        for fire in self._callbacks.live("on_after_setup"):
            fire(fabric=self, module=wrapped)

    # --- the step

    def backward(self, tensor: Tensor, *args: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        """Run the backward pass, instead of ``loss.backward()``.

        Args:
            tensor: the loss.
            *args: handed on to ``Tensor.backward``.
            **kwargs: handed on to ``Tensor.backward``.
            model: the set-up module whose engine runs it; needed where several engines exist.

        Raises:
            ArgumentValueError: several engines, and no ``model``.
            UsageError: the strategy needs an engine, and none is set up.
        """
        self._setups.backward(tensor, *args, model=model, **kwargs)

    def clip_gradients(
        self,
        module: nn.Module | None,
        optimizer: Optimizer,
        clip_val: float | int | None = None,
        max_norm: float | int | None = None,
        norm_type: float | int | str = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor | None:
        """Clip gradients by value or by total norm; they are unscaled first.

        Args:
            module: only its parameters are clipped.
            optimizer: steps those parameters.
            clip_val: each gradient is clipped to ``[-clip_val, clip_val]``.
            max_norm: the greatest total norm.
            norm_type: 2.0, 1.0, ``"inf"``, ...
            error_if_nonfinite: raise where the total norm is not finite. Under loss scaling such a norm is returned:
                the step is skipped and the scale backs off.

        Returns:
            The total norm before clipping, a scalar tensor; None when clipping by value.

        Raises:
            ArgumentValueError: neither, or both, of ``clip_val`` and ``max_norm``.
        """
        return clip_gradients(
            module,
            optimizer,
            setups=self._setups,
            clip_val=clip_val,
            max_norm=max_norm,
            norm_type=norm_type,
            error_if_nonfinite=error_if_nonfinite,
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """Context in which operations run at the precision, for code outside a set-up module."""
        return self.precision.forward_context()

    def no_backward_sync(
        self, module: nn.Module | Sequence[nn.Module], enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """Context in which ``backward`` leaves gradients of each rank as they are (for accumulation).

        Args:
            module: a set-up module, or a list or tuple of them.
            enabled: False makes it do nothing.

        Raises:
            NotSetUpError: one has not been set up (a TypeError).
        """
        return no_backward_sync(module, enabled, setups=self._setups)

    # --- moving and making

    def to_device(self, obj: T) -> T:
        """Move a module (in place), a tensor, or a nested collection of tensors to the device, and return it."""
        if isinstance(obj, nn.Module):
            self.accelerator.setup_device(self.device)
            self.strategy.module_to_device(obj)
            return obj
        return move_data_to_device(obj, self.device)

    def init_tensor(self) -> AbstractContextManager[Any]:
        """Context in which new tensors are on the device and in the dtype of the precision."""
        stack = ExitStack()
        stack.enter_context(self.precision.tensor_init_context())
        stack.enter_context(self.strategy.tensor_init_context())
        return stack

    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Context in which new modules are on the device and in the dtype of the precision.

        Args:
            empty_init: True leaves weights uninitialised (they will be loaded); None leaves it to the strategy.
        """
        lifecycle.require_processes(self, "init_module")
        stack = ExitStack()
        stack.enter_context(self.precision.module_init_context())
        stack.enter_context(self.strategy.module_init_context(empty_init=empty_init))
        return stack

    def sharded_model(self) -> AbstractContextManager[Any]:
        """Deprecated: use :meth:`init_module`."""
        rank_zero_deprecation(
            "Fabric.sharded_model() is deprecated. Use Fabric.init_module() and Fabric.setup_module()."
        )
        lifecycle.require_processes(self, "sharded_model")
        return self.strategy.module_sharded_context()

    # --- collectives

    def print(self, *args: Any, **kwargs: Any) -> None:
        """``print`` on local rank 0 of each node."""
        if self.local_rank == 0:
            print(*args, **kwargs)

    def barrier(self, name: str | None = None) -> None:
        """Wait until every rank is here; names that differ across ranks are reported."""
        lifecycle.require_processes(self, "barrier")
        self.strategy.barrier(name)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """``obj`` of rank ``src``, on every rank: any picklable object."""
        lifecycle.require_processes(self, "broadcast")
        return self.strategy.broadcast(obj, src=src)

    def all_gather(self, data: Any, group: Any | None = None, sync_grads: bool = False) -> Any:
        """Each tensor of a nested collection, from every rank, in a new first dimension (none at world size 1).

        Args:
            data: tensors and numbers, nested in any collection; of the same shapes on every rank.
            group: a process group; None means all.
            sync_grads: whether gradients flow back.

        Raises:
            CollectiveError: shapes differ across ranks; on every rank.
        """
        lifecycle.require_processes(self, "all_gather")
        return gather_nested(self.strategy, data, group=group, sync_grads=sync_grads)

    def all_reduce(self, data: Any, group: Any | None = None, reduce_op: Any = "mean") -> Any:
        """Reduce each tensor of a nested collection over ranks, in place, and return the collection.

        Args:
            data: tensors and numbers (which become tensors on the device), nested in any collection.
            group: a process group; None means all, or those who share the data for a mean.
            reduce_op: "mean"/"avg", "sum", "min", "max", "product", or a ReduceOp. The mean of integers is a new
                float tensor.
        """
        lifecycle.require_processes(self, "all_reduce")
        return reduce_nested(self.strategy, data, group=group, reduce_op=reduce_op)

    def gather_for_metrics(self, data: Any) -> Any:
        """Gather a batch's results along the first dimension, without the samples that were repeated as padding.

        Args:
            data: tensors of shape ``(batch, ...)``, nested in any collection, made from the batch that a set-up
                dataloader just gave.
        """
        lifecycle.require_processes(self, "gather_for_metrics")
        return gather_for_metrics(data, strategy=self.strategy, loaders=self._setups.dataloaders)

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:
        """Context that rank 0 (``local``: each node's local rank 0) runs before the others do.

        The others wait as long as rank 0 lives; its exception, or its death, reaches all of them.
        """
        lifecycle.require_processes(self, "rank_zero_first")
        return self.strategy.rank_zero_first(local)

    # --- checkpoints

    def save(
        self,
        path: StoragePath | Mapping[str, Any],
        state: Any,
        filter: Mapping[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """Write a checkpoint, whole or not at all; every rank succeeds or every rank raises.

        Args:
            path: a local path or an fsspec URL.
            state: a dictionary; set-up modules, optimizers, dataloaders, schedulers, this Fabric and anything else
                with a ``state_dict`` become state dicts, nested ones too.
            filter: ``{key of state: f(name, value) -> bool}``; what it is False for is left out.

        Raises:
            CheckpointError: it could not be written; what stood at ``path`` before still stands.
            ArgumentTypeError, ArgumentValueError: a filter that can't be meant; before anything is written.
        """
        lifecycle.require_processes(self, "save")
        where: Any = path
        what: Any = state
        if isinstance(path, Mapping):
            where, what = state, path
            rank_zero_deprecation("Fabric.save(state, path) is the old order: write Fabric.save(path, state).")
        checkpoint_state.save(
            where, what, strategy=self.strategy, precision=self.precision, setups=self._setups, filter=filter
        )
        for fire in self._callbacks.live("on_save"):
            fire(path=where, state=what)

    def save_async(self, path: StoragePath, state: Any) -> Any:
        """Write a checkpoint in the background: the state is the one at this call, whatever changes afterwards.

        Returns:
            A handle; its ``wait()`` returns when the checkpoint is whole, or raises what went wrong.
        """
        lifecycle.require_processes(self, "save_async")
        handle = checkpoint_state.save_async(
            path, state, strategy=self.strategy, precision=self.precision, setups=self._setups
        )
        for fire in self._callbacks.live("on_save"):
            fire(path=path, state=state)
        return handle

    def load(
        self, path: StoragePath, state: Any | None = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Restore the objects in ``state`` from a checkpoint; nothing is restored unless everything can be.

        Args:
            path: a local path or an fsspec URL.
            state: as in :meth:`save`; objects are restored in place, plain values replaced in this very dictionary.
            strict: whether what is missing or unexpected is an error.
            weights_only: None and True read tensors and plain values only: nothing in the checkpoint executes.

        Returns:
            What ``state`` did not ask for; everything, without ``state``.
        """
        lifecycle.require_processes(self, "load")
        remainder = checkpoint_state.load(
            path,
            state,
            strict,
            weights_only,
            strategy=self.strategy,
            precision=self.precision,
            setups=self._setups,
            reader=reader_for(path, self._selection.checkpoint_io, self._selection.trace),
        )
        for fire in self._callbacks.live("on_load"):
            fire(path=path, state=state)
        return remainder

    def load_raw(
        self,
        path: StoragePath,
        obj: nn.Module | Optimizer,
        strict: bool = True,
        weights_only: bool | None = None,
    ) -> None:
        """Restore one module or optimizer from a file that holds nothing but its state dict."""
        lifecycle.require_processes(self, "load_raw")
        checkpoint_state.load_raw(
            path,
            obj,
            strict,
            weights_only,
            strategy=self.strategy,
            setups=self._setups,
            reader=reader_for(path, self._selection.checkpoint_io, self._selection.trace),
        )

    def state_dict(self) -> dict[str, Any]:
        """Random-number states of this rank, and the positions of its dataloaders.

        So that a Fabric can stand in the ``state`` of :meth:`save`, for a resume that equals the uninterrupted run.
        """
        return lifecycle.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        lifecycle.load_state_dict(self, state)

    def load_per_rank_states(self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int) -> None:
        """Restore what another number of ranks saved. Called by :meth:`load` where that has changed.

        Dataloaders go on where the run was; a rank that did not exist keeps its random-number states.
        """
        lifecycle.load_per_rank_states(self, states, rank)

    # --- processes

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "run" in vars(cls):
            cls.run = lifecycle.launching_run(cls.run)  # type: ignore[method-assign]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Your training code, if you subclass Fabric: calling it launches the processes, then runs it in each."""

    def launch(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Start the processes, and run ``function(self, *args, **kwargs)`` in each if it is given.

        Args:
            function: gets this Fabric first.
            *args: handed on to it.
            **kwargs: handed on to it.

        Returns:
            Rank 0's result where this process spawned the ranks; each process's own where every rank runs the script.

        Raises:
            ArgumentTypeError: not a callable, one without a parameter, or none where the launcher needs one.
            UsageError: under the command line, where the processes exist already.
        """
        if self._selection.under_cli:
            raise UsageError(
                "This script was started by `poplin run` (or `fabric run`), which has made the processes: launch() has "
                "nothing to do. Leave it out, or write `if not fabric.launched: fabric.launch()`."
            )
        if function is not None:
            _check_function(function)
        return lifecycle.launch(self, function, args, kwargs)

    def close(self) -> None:
        """Give back what was taken: process group, environment variables, signal handlers. Once; again is a no-op."""
        lifecycle.close(self)

    def __enter__(self: F) -> F:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lifecycle.close(self, error)

    def __deepcopy__(self: F, memo: dict[int, Any]) -> F:
        return self  # a copied module that holds its Fabric, as a LightningModule does, still belongs to the same one

    def __getstate__(self) -> dict[str, Any]:
        """Before it is launched, a Fabric can be sent to another process, which is how spawned workers get theirs."""
        state = dict(self.__dict__)
        for name in ("_setups", "_life"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._callbacks.fire_through(self.call)
        self._setups = Setups(self.strategy, self.precision, self._callbacks)
        self._life = lifecycle.Life()

    # --- callbacks and loggers

    def call(self, hook_name: str, *args: Any, **kwargs: Any) -> None:
        """Run the method ``hook_name`` of every callback that has it.

        Args:
            hook_name: any method name.
            args: passed as they are.
            kwargs: of these each method gets the ones that it accepts.
        """
        self._callbacks.call(hook_name, *args, **kwargs)

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Log a number, or a scalar tensor, to every logger."""
        self.log_dict({name: value}, step=step)

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers and scalar tensors to every logger.

        Raises:
            ArgumentTypeError, ArgumentValueError: a value is no number; the metric is named.
        """
        if not self._loggers:
            return
        numbers = to_numbers(metrics)
        for logger in self._loggers:
            logger.log_metrics(metrics=numbers, step=step)

    @staticmethod
    def seed_everything(
        seed: int | None = None, workers: bool | None = True, verbose: bool = True, per_rank: bool = False
    ) -> int:
        """Seed Python, NumPy, torch, accelerators, and with ``workers`` the dataloaders' workers too.

        Args:
            seed: None takes ``PL_GLOBAL_SEED`` from the environment, or 0.
            workers: whether loader workers are seeded.
            verbose: whether to say so.
            per_rank: whether each rank gets a seed of its own.

        Returns:
            The seed.
        """
        return seed_everything(seed, workers=True if workers is None else workers, verbose=verbose, per_rank=per_rank)


F = TypeVar("F", bound=Fabric)


def _overrides_run(cls: type[Fabric]) -> bool:
    return cls.run is not Fabric.run


def _check_function(function: Any) -> None:
    if not callable(function):
        slip = " Did you write launch(main()) for launch(main)?"
        raise ArgumentTypeError(f"launch() takes a function, and got {type(function).__name__}.{slip}")
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        return  # its signature can't be read: it will tell by itself
    if not any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        name = getattr(function, "__name__", type(function).__name__)
        raise ArgumentTypeError(f"launch({name}) calls {name}(fabric, ...): give it a first parameter for the Fabric.")
