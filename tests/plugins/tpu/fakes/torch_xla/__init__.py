"""A stand-in for torch_xla's few calls that need several replicas: processes of gloo, tensors on the CPU.

The real one's replicas on the CPU abort in their first collective, so this is what can be shown without TPUs.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def device():
    return torch.device("cpu")


def sync(wait=False):
    """Everything is computed at once here."""


def launch(function, args=(), start_method="spawn"):
    count = int(os.environ["FAKE_REPLICAS"])
    address = f"tcp://127.0.0.1:{os.environ['FAKE_PORT']}"
    mp.start_processes(_replica, (function, args, count, address), nprocs=count, start_method=start_method)


def _replica(index, function, args, count, address):
    os.environ["PJRT_LOCAL_PROCESS_RANK"] = str(index)
    dist.init_process_group("gloo", init_method=address, rank=index, world_size=count)
    try:
        function(index, *args)
    finally:
        dist.destroy_process_group()
