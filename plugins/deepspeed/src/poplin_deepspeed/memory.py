"""What ZeRO holds in one process, for ``poplin estimate``: by stage, as the ZeRO paper (arXiv 1910.02054) has it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from poplin.strategies import Memory, memory_of
from poplin_deepspeed.settings import ZERO, get

_MASTER_BYTES = 4  # the weights that the optimizer steps are float32
#: DeepSpeed's own defaults, numbers of elements.
_MAX_LIVE = 1_000_000_000


def planned(
    module: nn.Module,
    make_optimizer: Callable[..., Any] | None,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    world_size: int,
) -> Memory:
    """Bytes of one of ``world_size`` processes.

    Args:
        module: on the meta device.
        make_optimizer: makes the optimizer of a list of parameters; None leaves its part out.
        config: DeepSpeed's, merged.
        dtype: of the weights that compute.
        world_size: number of processes.
    """
    stage = int(get(config, (ZERO, "stage")))
    whole = memory_of(copy.deepcopy(module).float(), make_optimizer)
    parameters = [parameter for parameter in module.parameters() if parameter.is_floating_point()]
    count = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)

    def part(size: int, sharded: bool) -> int:
        return -(-size // world_size) if sharded else size

    bucket = min(int(get(config, (ZERO, "reduce_bucket_size")) or 0), trained)
    overlaps = get(config, (ZERO, "overlap_comm"))
    buckets = 2 if (overlaps if overlaps is not None else stage == 3) else 1
    live = get(config, (ZERO, "stage3_max_live_parameters")) or _MAX_LIVE
    gathered = min(int(live), count) if stage == 3 else 0
    memory = dataclasses.replace(
        whole,
        parameters=part(count * dtype.itemsize, stage == 3),
        gradients=part(trained * dtype.itemsize, stage >= 2),
        optimizer=part(whole.optimizer + trained * _MASTER_BYTES, True) if make_optimizer is not None else 0,
        communication=(bucket * buckets + gathered) * dtype.itemsize,
    )
    if _offloads(config, "offload_optimizer"):
        memory = memory.offloaded("optimizer")
    if _offloads(config, "offload_param"):
        memory = memory.offloaded("parameters")
    return memory


def _offloads(config: Mapping[str, Any], section: str) -> bool:
    return bool(get(config, (ZERO, section, "device")) == "cpu")
