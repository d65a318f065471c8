"""The constructor's arguments and the places in DeepSpeed's config that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ZERO = "zero_optimization"

#: Argument → where it goes in the config.
PLACES: dict[str, tuple[str, ...]] = {
    "stage": (ZERO, "stage"),
    "contiguous_gradients": (ZERO, "contiguous_gradients"),
    "overlap_comm": (ZERO, "overlap_comm"),
    "allgather_partitions": (ZERO, "allgather_partitions"),
    "reduce_scatter": (ZERO, "reduce_scatter"),
    "allgather_bucket_size": (ZERO, "allgather_bucket_size"),
    "reduce_bucket_size": (ZERO, "reduce_bucket_size"),
    "sub_group_size": (ZERO, "sub_group_size"),
    "zero_allow_untested_optimizer": ("zero_allow_untested_optimizer",),
    "zero_force_ds_cpu_optimizer": ("zero_force_ds_cpu_optimizer",),
    "loss_scale": ("fp16", "loss_scale"),
    "initial_scale_power": ("fp16", "initial_scale_power"),
    "loss_scale_window": ("fp16", "loss_scale_window"),
    "hysteresis": ("fp16", "hysteresis"),
    "min_loss_scale": ("fp16", "min_loss_scale"),
    "partition_activations": ("activation_checkpointing", "partition_activations"),
    "cpu_checkpointing": ("activation_checkpointing", "cpu_checkpointing"),
    "contiguous_memory_optimization": ("activation_checkpointing", "contiguous_memory_optimization"),
    "synchronize_checkpoint_boundary": ("activation_checkpointing", "synchronize_checkpoint_boundary"),
    "block_size": ("aio", "block_size"),
    "queue_depth": ("aio", "queue_depth"),
    "single_submit": ("aio", "single_submit"),
    "overlap_events": ("aio", "overlap_events"),
    "thread_count": ("aio", "thread_count"),
    "offload_optimizer_device": (ZERO, "offload_optimizer", "device"),
    "optimizer_buffer_count": (ZERO, "offload_optimizer", "buffer_count"),
    "offload_params_device": (ZERO, "offload_param", "device"),
    "params_buffer_count": (ZERO, "offload_param", "buffer_count"),
    "params_buffer_size": (ZERO, "offload_param", "buffer_size"),
    "max_in_cpu": (ZERO, "offload_param", "max_in_cpu"),
}
#: Arguments that turn a whole section on; those that need one of these.
SECTIONS: dict[str, tuple[str, str]] = {
    "offload_optimizer": (ZERO, "offload_optimizer"),
    "offload_parameters": (ZERO, "offload_param"),
}
#: Used where neither an argument nor the config says anything. What isn't here is DeepSpeed's own default.
DEFAULTS: dict[tuple[str, ...], Any] = {
    (ZERO, "stage"): 2,
    (ZERO, "allgather_bucket_size"): 200_000_000,
    (ZERO, "reduce_bucket_size"): 200_000_000,
    ("zero_allow_untested_optimizer",): True,
    ("zero_force_ds_cpu_optimizer",): False,
    ("gradient_clipping",): 0.0,  # DeepSpeed's own default is 1.0, and training would differ in silence
    ("fp16", "loss_scale"): 0,
    ("fp16", "initial_scale_power"): 16,
}
OFFLOAD_DEFAULTS: dict[str, dict[str, Any]] = {
    "offload_optimizer": {"device": "cpu"},
    "offload_param": {"device": "cpu"},
}
#: Top-level keys that DeepSpeed knows; a key that is nearly one of these is a slip.
KNOWN_KEYS = frozenset(
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps optimizer scheduler fp16 bf16 amp "
    "gradient_clipping zero_optimization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
    "activation_checkpointing aio steps_per_print wall_clock_breakdown dump_state prescale_gradients "
    "gradient_predivide_factor communication_data_type sparse_gradients flops_profiler comms_logger tensorboard wandb "
    "csv_monitor comet data_types checkpoint compression_training data_efficiency curriculum_learning elasticity "
    "autotuning sparse_attention pipeline tensor_parallel hybrid_engine torch_autocast compile memory_breakdown "
    "dataloader_drop_last seq_parallel_communication_data_type sequence_parallel_size data_parallel_size "
    "use_data_before_expert_parallelism nebula weight_quantization progressive_layer_drop eigenvalue "
    "load_universal_checkpoint disable_allgather log_level managed_gradient_accumulation gradient_allreduce_op "
    "timers graph_harvesting zero3_init_flag disable_python_gc expert_parallel".split()
)


def get(config: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    """What stands at ``place``; None if nothing does."""
    value: Any = config
    for key in place:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def put(config: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    """Put ``value`` at ``place``; sections are made."""
    for key in place[:-1]:
        config = config.setdefault(key, {})
    config[place[-1]] = value


def without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` without the entries ``"auto"``, which other trainers fill in: what is left out is decided here."""
    cleaned = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            value = without_auto(value)
        if value != "auto":
            cleaned[key] = value
    return cleaned


def leaves(config: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value in nested sections, with its place."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*place, key))
        else:
            yield (*place, key), value
