"""The strategy: modules become DeepSpeed engines, which shard optimizer states, gradients and parameters (ZeRO)."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from poplin.errors import ArgumentValueError, UsageError
from poplin.precision import Precision
from poplin.strategies import Memory
from poplin_deepspeed import config as configuration
from poplin_deepspeed import memory, selecting, setup
from poplin_deepspeed.capturing import Captured
from poplin_deepspeed.extensions import check_compiler, check_locks, stale_locks
from poplin_deepspeed.installation import Communication, load, variables
from poplin_deepspeed.precision import DTYPES, DeepSpeedPrecision
from poplin_deepspeed.settings import ZERO, get
from poplin_deepspeed.stepping import Stepping
from poplin_deepspeed.storing import Storing

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator
    from poplin.checkpoint import CheckpointIO
    from poplin.environments import ClusterEnvironment
    from poplin.selection import Selection

_BATCH = "train_micro_batch_size_per_gpu"


class DeepSpeedStrategy(Stepping, Storing):
    """ZeRO by DeepSpeed, on every device type for which it has an accelerator; CPU with gloo among them.

    Stage 1 shards optimizer states over the processes, stage 2 gradients too, stage 3 parameters too. A module and its
    one optimizer are set up together and become an engine. Call ``fabric.backward`` as often as you like before
    ``optimizer.step()``: gradients add up.

    What an argument leaves at None is decided by the config, else by DeepSpeed. An argument and the config that say
    different things are an error.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision: what is fixed on the strategy
            object; None leaves the choice to Fabric.
        process_group_backend: name of the backend for the devices' tensors; None asks the accelerator.
        timeout: of collectives and of connecting, a timedelta or seconds; None takes torch's default.
        zero_optimization: must be True: without ZeRO, use ``ddp``.
        stage: of ZeRO, 1, 2 or 3; 2 if nothing says otherwise.
        remote_device: where ``init_module`` puts parameters at stage 3: "cpu" or "nvme"; None takes
            ``offload_params_device`` if parameters are offloaded.
        offload_optimizer, offload_parameters: keep optimizer states, or parameters (stage 3), off the device.
        offload_optimizer_device, offload_params_device: "cpu" or "nvme".
        nvme_path: folder on the NVMe.
        params_buffer_count, params_buffer_size, max_in_cpu, optimizer_buffer_count, pin_memory: of the offload.
        block_size, queue_depth, single_submit, overlap_events, thread_count: of asynchronous IO to the NVMe.
        sub_group_size, contiguous_gradients, overlap_comm, allgather_partitions, reduce_scatter: as in DeepSpeed's
            config, section ``zero_optimization``.
        allgather_bucket_size, reduce_bucket_size: numbers of elements; 200 million if nothing says otherwise.
        zero_allow_untested_optimizer: whether optimizers are taken that DeepSpeed has not tried; True if nothing says
            otherwise.
        zero_force_ds_cpu_optimizer: whether an offloaded optimizer must be one of DeepSpeed's own; False if nothing
            says otherwise.
        config: DeepSpeed's config: a dictionary, or the path of a JSON file. None reads the environment variables
            ``POPLIN_DEEPSPEED_CONFIG`` and ``PL_DEEPSPEED_CONFIG_PATH``.
        logging_level: of DeepSpeed's own logger.
        loss_scale, initial_scale_power, loss_scale_window, hysteresis, min_loss_scale: of float16's loss scaling.
        partition_activations, cpu_checkpointing, contiguous_memory_optimization, synchronize_checkpoint_boundary: for
            ``deepspeed.checkpointing.checkpoint``.
        exclude_frozen_parameters: leave what is not trained out of the folders that are saved.
        load_full_weights: accepted for Lightning's sake: full weights are recognised by themselves.

    Raises:
        DeepSpeedConfigError: the config can't be read, or can't be meant.
        ContradictionError: two sources say different things.
    """

    requires_joint_setup = True
    needs_forward = True
    owns_backward = True
    owns_parameters = True
    mutates_module = True
    picklable = False
    checkpoint_io_name = "deepspeed"

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        zero_optimization: bool = True,
        stage: int | None = None,
        remote_device: str | None = None,
        offload_optimizer: bool | None = None,
        offload_parameters: bool | None = None,
        offload_params_device: str | None = None,
        nvme_path: str | None = None,
        params_buffer_count: int | None = None,
        params_buffer_size: int | None = None,
        max_in_cpu: int | None = None,
        offload_optimizer_device: str | None = None,
        optimizer_buffer_count: int | None = None,
        block_size: int | None = None,
        queue_depth: int | None = None,
        single_submit: bool | None = None,
        overlap_events: bool | None = None,
        thread_count: int | None = None,
        pin_memory: bool | None = None,
        sub_group_size: int | None = None,
        contiguous_gradients: bool | None = None,
        overlap_comm: bool | None = None,
        allgather_partitions: bool | None = None,
        reduce_scatter: bool | None = None,
        allgather_bucket_size: int | None = None,
        reduce_bucket_size: int | None = None,
        zero_allow_untested_optimizer: bool | None = None,
        zero_force_ds_cpu_optimizer: bool | None = None,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        logging_level: int = logging.WARNING,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        loss_scale: float | None = None,
        initial_scale_power: int | None = None,
        loss_scale_window: int | None = None,
        hysteresis: int | None = None,
        min_loss_scale: int | None = None,
        partition_activations: bool | None = None,
        cpu_checkpointing: bool | None = None,
        contiguous_memory_optimization: bool | None = None,
        synchronize_checkpoint_boundary: bool | None = None,
        load_full_weights: bool = False,
        precision: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
        exclude_frozen_parameters: bool = False,
        checkpoint_io: CheckpointIO | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in _OWN and value is not None}
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        if not zero_optimization:
            arguments["stage"] = 0
        #: Merged; batch sizes and precision are added when an engine is made.
        self.config = configuration.build(config, arguments)
        self.remote_device = remote_device
        self.logging_level = logging_level
        self.exclude_frozen_parameters = exclude_frozen_parameters
        #: At stage 1 nothing is synchronised before the step.
        self.supports_no_backward_sync = self.stage == 1
        self._batch_size: int | None = None
        self._deepspeed: Any = None
        self._communication: Communication | None = None
        self._engines: list[weakref.ref[Any]] = []
        #: What the engines gave for a save that is under way, by the tag of its folder.
        self._captured: dict[str, Captured] = {}

    @property
    def stage(self) -> int:
        """Of ZeRO."""
        return int(get(self.config, (ZERO, "stage")))

    # --- selection

    def make_precision(self, name: str) -> Precision | None:
        """DeepSpeed's own for every name that its engine serves."""
        return DeepSpeedPrecision(name) if name in DTYPES else None

    def accepts_precision(self, precision: Precision) -> str | None:
        """Only what the engine itself computes in."""
        return selecting.refusal(precision)

    def check(self, selection: Selection) -> None:
        """DeepSpeed is there, and serves the device and the precision.

        Raises:
            SelectionError: with what to do instead.
        """
        super().check(selection)
        selecting.check(selection, self.config, self.process_group_backend)

    # --- processes

    def setup_environment(self) -> None:
        """Bring up the process group, and let DeepSpeed use it.

        Raises:
            BuildError: an extension that will be needed can't be built.
            DeepSpeedMissingError: DeepSpeed can't be imported.
            ContradictionError: it runs on another type of device in this process.
        """
        self._check_builds()
        super().setup_environment()
        self._deepspeed = load(self.root_device.type)
        self._communication = Communication(self._deepspeed, self.logging_level)
        with variables(self._rank_variables()):
            self._communication.connect(self.process_group_backend or self._collective_backend())

    def _collective_backend(self) -> str | None:
        return self.accelerator.collective_backend if self.accelerator is not None else None

    def _check_builds(self) -> None:
        if configuration.offloads_to(self.config, "nvme"):
            check_locks(["async_io"])
            check_compiler()
        elif configuration.offloads_to(self.config, "cpu"):
            check_locks(["cpu_adam", "cpu_adagrad", "cpu_lion"])
        stale = stale_locks()
        if stale and self._trace is not None:
            self._trace.note("extensions", "stale locks", f"builds that were cut off left {', '.join(map(str, stale))}")

    def _rank_variables(self) -> dict[str, str]:
        """What DeepSpeed reads from the environment."""
        environment = self.cluster_environment
        assert environment is not None
        values = {"RANK": self.global_rank, "LOCAL_RANK": self.local_rank, "WORLD_SIZE": self.world_size}
        address = {"MASTER_ADDR": environment.main_address, "MASTER_PORT": environment.main_port}
        return {name: str(value) for name, value in {**values, **address}.items()}

    def teardown(self) -> None:
        """Take the engines' hooks off the modules, and let the process group go."""
        for engine in self._live_engines():
            setup.release(engine)
        self._engines.clear()
        self._captured.clear()
        if self._communication is not None:
            self._communication.close()
            self._communication = None
        super().teardown()

    def __getstate__(self) -> dict[str, Any]:
        """What can travel to another process: no engine, and no library."""
        return {**super().__getstate__(), "_engines": [], "_captured": {}, "_communication": None, "_deepspeed": None}

    # --- setup

    def module_to_device(self, module: nn.Module) -> None:
        """Move what is not partitioned; partitioned parameters are where they belong."""
        if not any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
            super().module_to_device(module)
            return
        for part in module.modules():
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = buffer.to(self.root_device)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Learn the batch size of each process, which DeepSpeed reports by."""
        size = getattr(dataloader, "batch_size", None) or getattr(
            getattr(dataloader, "batch_sampler", None), "batch_size", None
        )
        if isinstance(size, int) and size > 0 and self._batch_size is None:
            self._batch_size = size
            if _BATCH not in self.config and "train_batch_size" not in self.config:
                for engine in self._live_engines():
                    engine.set_train_micro_batch_size(size)
        return dataloader

    def setup_module(self, module: nn.Module) -> nn.Module:
        """A module without an optimizer, to be run: an engine at stage 3, which shards it; else as it is."""
        if self.stage < 3 and not any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
            return module
        engine: nn.Module = self._engine(module, None)
        return engine

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: Sequence[Optimizer], scheduler: Any | None = None
    ) -> tuple[nn.Module, list[Optimizer], Any | None]:
        """Make an engine. The scheduler stays the user's to step.

        Raises:
            ArgumentValueError: not exactly one optimizer.
            UsageError, EngineLimitError: one that doesn't fit the module, or that no engine can step.
            EngineSetupError: DeepSpeed refuses.
        """
        if len(optimizers) != 1:
            raise ArgumentValueError(
                f"DeepSpeed makes an engine of a module and its one optimizer, and got {len(optimizers)} optimizers. "
                "Use parameter groups, or set up several modules with an optimizer each."
            )
        (optimizer,) = optimizers
        setup.check_optimizer(module, optimizer, self._handles())
        if not any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]):
            return module, [optimizer], scheduler
        return self._engine(module, optimizer), [optimizer], scheduler

    def _engine(self, module: nn.Module, optimizer: Optimizer | None) -> Any:
        precision = self.precision
        exact = optimizer is not None and isinstance(precision, DeepSpeedPrecision) and precision.autocasts
        with variables(self._rank_variables()):
            setup.configure_checkpointing(self._library(), self.config)
            engine = setup.make_engine(
                self._library(),
                module,
                optimizer,
                self._complete_config(),
                super().get_module_state_dict(module),
                device=self.root_device,
                local_rank=self.local_rank,
                exact_weights=exact,
            )
        self._engines.append(weakref.ref(engine))
        return engine

    def _library(self) -> Any:
        if self._deepspeed is None:
            raise UsageError("DeepSpeedStrategy has no processes yet: call fabric.launch() first.")
        return self._deepspeed

    def _complete_config(self) -> dict[str, Any]:
        config = {key: dict(value) if isinstance(value, dict) else value for key, value in self.config.items()}
        if _BATCH not in config and "train_batch_size" not in config:
            config[_BATCH] = self._batch_size or 1
        config["gradient_accumulation_steps"] = 1
        section = self.precision.section if isinstance(self.precision, DeepSpeedPrecision) else None
        if section is not None:
            config[section] = {**config.get(section, {}), "enabled": True}
        return config

    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """At stage 3 parameters are partitioned as soon as they are made."""
        context: Any = super().module_init_context(empty_init)
        if self.stage == 3:
            context.enter_context(  # the dtype is in the config: given as an argument, it would be passed over
                self._library().zero.Init(
                    config_dict_or_path=self._complete_config(),
                    remote_device=self.remote_device or get(self.config, (ZERO, "offload_param", "device")),
                )
            )
        return context  # type: ignore[no-any-return]

    def planned_memory(self, module: nn.Module, make_optimizer: Callable[..., Any] | None = None) -> Memory:
        """By the stage: whole, or this process's part of it. What lies on NVMe is counted as on the device."""
        dtype = self.precision.dtype if isinstance(self.precision, DeepSpeedPrecision) else torch.float32
        return memory.planned(module, make_optimizer, self.config, dtype, self.world_size)

    def module_sharded_context(self) -> AbstractContextManager[Any]:
        return self.module_init_context()


_OWN = frozenset(
    "self __class__ accelerator zero_optimization remote_device config logging_level parallel_devices "
    "cluster_environment load_full_weights precision process_group_backend timeout exclude_frozen_parameters "
    "checkpoint_io".split()
)
