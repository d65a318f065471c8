"""What this package offers. Light: it imports neither torch nor DeepSpeed before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy

_STRATEGY = "poplin_deepspeed.strategy:DeepSpeedStrategy"
_NVME = {"remote_device": "nvme", "offload_params_device": "nvme", "offload_optimizer_device": "nvme"}
#: Lookup name → the arguments that it stands for. The plain name leaves everything to the config.
_PRESETS: dict[str, dict[str, Any]] = {
    "deepspeed": {},
    "deepspeed_stage_1": {"stage": 1},
    "deepspeed_stage_1_offload": {"stage": 1, "offload_optimizer": True},
    "deepspeed_stage_2": {"stage": 2},
    "deepspeed_stage_2_offload": {"stage": 2, "offload_optimizer": True},
    "deepspeed_stage_3": {"stage": 3},
    "deepspeed_stage_3_offload": {"stage": 3, "offload_optimizer": True, "offload_parameters": True},
    "deepspeed_stage_3_offload_nvme": {"stage": 3, "offload_optimizer": True, "offload_parameters": True, **_NVME},
}


@hookimpl
def poplin_strategies() -> Mapping[str, Callable[..., Any]]:
    """``deepspeed`` and its variants by ZeRO stage and by what is offloaded."""
    return {name: lazy(_STRATEGY, **presets) for name, presets in _PRESETS.items()}


@hookimpl
def poplin_checkpoint_ios() -> Mapping[str, Callable[..., Any]]:
    """``deepspeed``: the folders that DeepSpeed's engine writes."""
    return {"deepspeed": lazy("poplin_deepspeed.checkpoint:DeepSpeedCheckpointIO")}
