"""Ranks, and how many devices there are."""

import torch.distributed as dist


def device_type():
    return "TPU"


def world_size():
    return dist.get_world_size() if dist.is_initialized() else 1


def global_ordinal():
    return dist.get_rank() if dist.is_initialized() else 0


local_ordinal = global_ordinal
addressable_device_count = world_size


def host_index():
    return 0
