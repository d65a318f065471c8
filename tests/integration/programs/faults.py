"""Trains on two ranks, saves at every step, and fails as it is told to: ``faults.py CASE FOLDER``.

CASE is one of the functions at the end. What came of a case that goes on is printed as a line ``RESULT {...}``.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from poplin import Fabric

CASE, FOLDER = sys.argv[1], sys.argv[2]


def train(fabric, fault=None, sabotage_at=3):
    """Train for ever; every step ends with a save. ``fault(fabric)`` strikes in step ``sabotage_at`` and later."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 2048), nn.Tanh(), nn.Linear(2048, 256))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    inputs = torch.randn(4, 256, generator=torch.Generator().manual_seed(fabric.global_rank))
    for step in range(10**6):
        fabric.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        fabric.save(os.path.join(FOLDER, "run.ckpt"), {"model": model, "optimizer": optimizer, "step": step})
        if step == sabotage_at:
            print(f"up{fabric.global_rank}", flush=True)
            fabric.barrier("both are up")
        if step >= sabotage_at and fault is not None:
            fault(fabric)


def raise_on_0(fabric):
    if fabric.global_rank == 0:
        raise ValueError("boom on rank 0")


def raise_on_1(fabric):
    if fabric.global_rank == 1:
        raise ValueError("boom on rank 1")


def kill_1(fabric):
    if fabric.global_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


# --- every rank runs this script


def script(fault=None):
    with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
        fabric.launch()
        train(fabric, fault)


def plain_script(fault):
    """As most scripts are: nobody closes the Fabric."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    train(fabric, fault)


class Stuck(torch.autograd.Function):
    """A backward pass that hears no signal, as one that waits in native code for other ranks."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ctypes.CDLL(None).sleep(60)


def raise_on_0_while_1_is_stuck(fabric):
    if fabric.global_rank == 1:
        fabric.backward(Stuck.apply(torch.ones(1, requires_grad=True)))
    time.sleep(0.5)  # let it get there
    raise_on_0(fabric)


def preempted_with_loader_workers():
    """The whole process group is told to end while loader workers live: save, and end well."""
    with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
        fabric.launch()
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
        loader = DataLoader(TensorDataset(torch.randn(100_000, 4)), batch_size=4, num_workers=2)
        for reads, (inputs,) in enumerate(fabric.setup_dataloaders(loader), start=1):
            if fabric.should_stop:
                fabric.save(os.path.join(FOLDER, "last.ckpt"), {"model": model, "step": reads})
                print(f"stopped{fabric.global_rank} {reads}.", flush=True)
                break
            fabric.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.002)
            if reads == 20:
                print(f"up{fabric.global_rank}", flush=True)
    print(f"end{fabric.global_rank}", flush=True)


# --- workers run a function


def workers():
    """Launch functions, one after the other, and tell what came of each."""
    for name, strategy, fault in (
        ("spawned_1_raises", "ddp_spawn", raise_on_1),
        ("forked_0_raises", "ddp_fork", raise_on_0),
        ("forked_1_is_killed", "ddp_fork", kill_1),
    ):
        before, told = dict(os.environ), {"case": name}
        fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
        begun = time.monotonic()
        try:
            fabric.launch(train, fault)
        except Exception as error:
            told |= {"error": type(error).__name__, "text": str(error)}
            told["whole"] = "".join(traceback.format_exception(error))
        told["seconds"] = time.monotonic() - begun
        told["environment_restored"] = dict(os.environ) == before
        told["files"] = sorted(os.listdir(FOLDER))
        print("RESULT", json.dumps(told), flush=True)


if __name__ == "__main__":
    cases = {
        "rank_1_raises": lambda: script(raise_on_1),
        "rank_0_raises": lambda: plain_script(raise_on_0),
        "rank_0_raises_while_1_is_stuck": lambda: plain_script(raise_on_0_while_1_is_stuck),
        "rank_1_is_killed": lambda: script(kill_1),
        "goes_on": script,
        "goes_on_spawned": lambda: Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(train),
        "preempted_with_loader_workers": preempted_with_loader_workers,
        "workers": workers,
    }
    cases[CASE]()
