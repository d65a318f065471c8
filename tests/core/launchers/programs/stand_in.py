"""A stand-in for the selection, so that launchers are tested by themselves; and a bare process group."""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist

from poplin.accelerators import CPUAccelerator
from poplin.environments import LocalEnvironment
from poplin.selection import Trace


def selection(devices=2, environment=None):
    environment = environment or LocalEnvironment()
    environment.validate_settings(devices, 1)
    chosen = SimpleNamespace(
        accelerator=CPUAccelerator(),
        devices=(torch.device("cpu"),) * devices,
        num_nodes=1,
        environment=environment,
        trace=Trace(),
        external=environment.creates_processes_externally,
    )
    environment.bind(chosen)
    return chosen


_made = 0


def up(environment):
    """A process group by the environment's word alone."""
    global _made
    _made += 1
    url = (
        f"tcp://{environment.main_address}:{environment.main_port}"
        f"?rank={environment.global_rank()}&world_size={environment.world_size()}"
    )
    store, rank, size = next(iter(dist.rendezvous(url)))
    dist.init_process_group("cpu:gloo", store=dist.PrefixStore(f"{_made}", store), rank=rank, world_size=size)


def total():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def ranks():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    return {name: os.environ.get(name) for name in names}
