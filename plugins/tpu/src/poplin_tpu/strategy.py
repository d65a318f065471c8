"""torch_xla on one device, and on one device in each of several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import CollectiveError, NotLaunchedError, SelectionError
from poplin.strategies import ParallelStrategy, SingleDeviceStrategy, Strategy
from poplin_tpu import collectives, runtime
from poplin_tpu.environment import XLAEnvironment
from poplin_tpu.loader import DeviceLoader
from poplin_tpu.precision import XLAPrecision

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from poplin.accelerators import Accelerator
    from poplin.checkpoint import CheckpointIO
    from poplin.environments import ClusterEnvironment
    from poplin.precision import Precision
    from poplin.selection import Selection

T = TypeVar("T")
#: Gradients, each with how often it has been written to.
_Gradients = list[tuple[int, int]]


class TorchXLA(Strategy):
    """What torch_xla's strategies have in common: work is recorded, and done when a step is marked."""

    checkpoint_io_name = "xla"
    owns_data_movement = True

    def check(self, selection: Selection) -> None:
        """It runs on torch_xla's devices.

        Raises:
            SelectionError: another accelerator.
        """
        super().check(selection)
        accelerator = selection.accelerator
        if accelerator.device_type != runtime.TORCH_XLA:
            raise SelectionError(
                f"{type(self).__name__} runs on torch_xla's devices, and the accelerator is "
                f"{accelerator.name()!r}. Use "
                "accelerator='xla' (or 'tpu', where torch_xla serves it), or strategy='auto'."
            )

    def make_precision(self, name: str) -> Precision | None:
        """torch_xla's own for the formats that it is made for; the others are the registry's."""
        return XLAPrecision(name) if name in ("32-true", "bf16-true", "16-true") else None

    def accepts_precision(self, precision: Precision) -> str | None:
        if precision.scales_loss:
            return (
                "torch_xla's devices compute in bfloat16, which needs no loss scaling: use 'bf16-mixed' or 'bf16-true'"
            )
        return super().accepts_precision(precision)

    @property
    def root_device(self) -> torch.device:
        """This process's device, by the runtime."""
        device: torch.device = runtime.xla().device()
        return device

    def process_dataloader(self, dataloader: Any) -> Any:
        """Batches come by torch_xla's loader, which uploads them ahead and marks a step at each."""
        return DeviceLoader(dataloader, self.root_device, self._input_sharding())

    def _input_sharding(self) -> Any:
        return None

    def optimizer_step(self, optimizer: Optimizer, model: nn.Module | None = None, **kwargs: Any) -> Any:
        """Step, and mark the step: the device does what was recorded."""
        result = super().optimizer_step(optimizer, model, **kwargs)
        runtime.xla().sync()
        return result


class SingleDeviceXLAStrategy(TorchXLA, SingleDeviceStrategy):
    """One process on one device of torch_xla's.

    Args:
        device: the device, or None for the one that ``devices`` selects.
        accelerator, checkpoint_io, precision: as for every strategy.
    """

    @property
    def root_device(self) -> torch.device:
        """The device that was selected, or else this process's own, by the runtime."""
        index = self.parallel_devices[0].index if self.parallel_devices else None
        device: torch.device = runtime.xla().device(index)
        return device


class XLAStrategy(TorchXLA, ParallelStrategy):
    """Data parallelism of torch_xla: a process for each device, gradients averaged when an optimizer steps.

    So there is no synchronisation in a backward pass, and ``no_backward_sync`` has nothing to leave out.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision: what is fixed on the strategy
            object; None leaves the choice to Fabric.
        sync_module_states: whether every rank starts with rank 0's parameters and buffers.
    """

    launcher_name = "xla"

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
        sync_module_states: bool = True,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision=precision,
        )
        self.sync_module_states = sync_module_states
        #: The gradients of optimizers as they were when they had been averaged and clipped.
        self._averaged: dict[int, _Gradients] = {}
        self._launched = False

    # --- place in the run, by the runtime

    @property
    def root_device(self) -> torch.device:
        """This process's device, by the runtime."""
        device: torch.device = runtime.xla().device()
        return device

    @property
    def global_rank(self) -> int:
        return int(runtime.xla("runtime").global_ordinal()) if self._launched else 0

    @property
    def local_rank(self) -> int:
        return int(runtime.xla("runtime").local_ordinal()) if self._launched else 0

    @property
    def node_rank(self) -> int:
        return int(runtime.xla("runtime").host_index()) if self._launched else 0

    @property
    def world_size(self) -> int:
        if self._launched:
            return int(runtime.xla("runtime").world_size())
        return len(self.parallel_devices or (None,)) * self.num_nodes

    def setup_environment(self) -> None:
        """Learn this process's place. There is no process group of torch's: the replicas have their own way.

        Raises:
            NotLaunchedError: torch_xla did not start this process.
        """
        if not XLAEnvironment.detect():
            raise NotLaunchedError(
                f"{type(self).__name__} runs in processes that torch_xla starts: call fabric.launch(main) with a "
                "function main(fabric)."
            )
        self._launched = True

    def init_process_group(self, timeout: timedelta | float | None = None) -> None:
        """Nothing: the replicas of torch_xla know each other."""

    def teardown(self) -> None:
        self._launched = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_launched": False}

    # --- steps

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Give every rank rank 0's values."""
        if self.sync_module_states and self.world_size > 1:
            runtime.xla("core.xla_model").broadcast_master_param(module)
        return module

    def optimizer_step(self, optimizer: Optimizer, model: nn.Module | None = None, **kwargs: Any) -> Any:
        """Average the gradients over ranks, step, and mark the step."""
        closure = kwargs.pop("closure", None)
        if closure is None:
            self._average(optimizer)
        else:

            def averaging() -> Any:
                loss = closure()
                self._average(optimizer)
                return loss

            kwargs["closure"] = averaging
        return super().optimizer_step(optimizer, model, **kwargs)

    def clip_gradients_norm(self, module: nn.Module | None, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Tensor:
        """Average the gradients over ranks, then clip."""
        self._average(optimizer)
        norm = super().clip_gradients_norm(module, optimizer, *args, **kwargs)
        self._averaged[id(optimizer)] = _gradients_of(optimizer)
        return norm

    def clip_gradients_value(self, module: nn.Module | None, optimizer: Optimizer, clip_val: float) -> None:
        """Average the gradients over ranks, then clip."""
        self._average(optimizer)
        super().clip_gradients_value(module, optimizer, clip_val)
        self._averaged[id(optimizer)] = _gradients_of(optimizer)

    def _average(self, optimizer: Optimizer) -> None:
        """Average, unless these very gradients have been: again would change nothing, and cost a collective."""
        if self._averaged.pop(id(optimizer), None) != _gradients_of(optimizer):
            runtime.xla("core.xla_model").reduce_gradients(optimizer)

    # --- collectives

    def all_gather(self, tensor: Tensor, group: ProcessGroup | None = None, sync_grads: bool = False) -> Tensor:
        self._check_group(group)
        return collectives.all_gather(tensor, sync_grads)

    def all_reduce(self, tensor: Tensor, group: ProcessGroup | None = None, reduce_op: Any = "mean") -> Tensor:
        self._check_group(group)
        return collectives.all_reduce(tensor, reduce_op)

    def barrier(self, name: str | None = None, group: ProcessGroup | None = None) -> None:
        self._check_group(group)
        collectives.barrier(name)

    def broadcast(self, obj: T, src: int = 0) -> T:
        return cast("T", collectives.broadcast(obj, src, self.global_rank, self.root_device))

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        return collectives.decide(decision, all)

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:
        """Context that one rank leaves before the others enter."""
        return self._first(self.local_rank == 0 if local else self.global_rank == 0)

    @contextmanager
    def _first(self, leads: bool) -> Iterator[None]:
        failed = False
        if not leads:
            failed = collectives.decide(False, all=False)
        if failed:
            raise CollectiveError(
                "The rank that goes first has failed in rank_zero_first(): its error is the one to see."
            )
        try:
            yield
        except BaseException:
            failed = True
            raise
        finally:
            if leads:
                collectives.decide(failed, all=False)

    def run_engine(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def _check_group(self, group: Any) -> None:
        if group is not None:
            raise SelectionError(f"{type(self).__name__} has no process groups of torch's: leave group= out.")


def _gradients_of(optimizer: Optimizer) -> _Gradients:
    gradients = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]
