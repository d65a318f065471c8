"""Fabrics one after the other in one script: ``two_fabrics.py CASE FOLDER``. Each rank writes what it saw."""

import json
import os
import signal
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn

import poplin
from poplin import Fabric
from poplin.strategies import DDPStrategy, SingleDeviceStrategy
from poplin.utilities.rank_zero import rank_zero_only

CASE, FOLDER = sys.argv[1], sys.argv[2]
NAMES = (
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class OfTheScript(SingleDeviceStrategy):
    """Registered at run time."""


class Subclass(DDPStrategy):
    """Registered at run time too."""


def outside():
    """What must be the same before and after."""
    return {
        "environment": {name: os.environ.get(name) for name in NAMES},
        "others": sorted(name for name in os.environ if name.startswith(("POPLIN", "LT_", "OMP", "TORCHELASTIC"))),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
        "group": dist.is_initialized(),
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "hook": sys.excepthook.__module__.startswith("poplin"),  # torch leaves one with each group
        "rank": rank_zero_only.rank,
    }


def use(fabric):
    """A step and a collective: the same numbers wherever the world has one size."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(2, 3) * (1 + fabric.global_rank)).sum())
    optimizer.step()
    return {
        "size": fabric.world_size,
        "rank": fabric.global_rank,
        "sum": float(fabric.all_reduce(torch.ones(()), reduce_op="sum")),
        "weight": model.weight.detach().flatten().tolist(),
        "group": dist.is_initialized(),
        "strategy": type(fabric.strategy).__name__,
    }


def one_after_the_other():
    """ddp on 2, one process, ddp on 2 again, ddp on 1: every rank runs all of it."""
    before, told = outside(), {}
    for name, devices, strategy in (
        ("two", 2, "ddp"),
        ("one", 1, "auto"),
        ("two_again", 2, "ddp"),
        ("ddp_of_one", 1, "ddp"),
    ):
        with Fabric(accelerator="cpu", devices=devices, strategy=strategy) as fabric:
            fabric.launch()
            told[name] = use(fabric)
        after = outside()
        told[name]["left_behind"] = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
        if name == "two":
            place = told[name]["rank"]
    with open(os.path.join(FOLDER, f"told{place}.json"), "w") as file:
        json.dump(told, file)


def spawned_work(fabric, megabytes):
    told = use(fabric)
    told["registered"] = poplin.registry.find("strategies", "of_the_script").target_class().__name__
    return told, torch.ones(megabytes * 250_000) if megabytes else None


def functions():
    """Functions in workers, then this process alone, with what was registered here."""
    poplin.register("strategies", "of_the_script", OfTheScript)
    poplin.register("strategies", "subclass_spawn", poplin.lazy("__main__:Subclass", start_method="spawn"))
    before, told = outside(), {}

    def note(name, function):
        try:
            told[name] = function()
        except Exception as error:
            told[name] = {"error": type(error).__name__, "text": str(error)}
            told[name]["whole"] = "".join(traceback.format_exception(error))[-3000:]
        after = outside()
        told[name]["left_behind"] = {key: [before[key], after[key]] for key in before if before[key] != after[key]}

    def launched(strategy, function, *args, devices=2):
        return Fabric(accelerator="cpu", devices=devices, strategy=strategy).launch(function, *args)

    def large():
        result, tensor = launched("ddp_fork", spawned_work, 200)
        return result | {"bytes": tensor.numel() * tensor.element_size(), "sum_of_it": float(tensor.sum())}

    def alone():
        with Fabric(accelerator="cpu", devices=1, strategy="of_the_script") as fabric:
            fabric.launch()
            return use(fabric)

    def local(fabric):
        return fabric.global_rank

    note("spawned", lambda: launched("subclass_spawn", spawned_work, 0)[0])
    note("alone", alone)
    note("large", large)
    note("closure", lambda: launched("ddp_spawn", local))
    note("lambda", lambda: launched("ddp_spawn", lambda fabric: fabric.global_rank))
    note("argument", lambda: launched("ddp_spawn", spawned_work, threading.Lock()))
    note("alone_again", alone)
    with open(os.path.join(FOLDER, "told.json"), "w") as file:
        json.dump(told, file)


def adopted():
    """The script brings torch.distributed up itself, under torchrun: Fabric uses the group and leaves it alone."""
    dist.init_process_group("gloo")
    group, told = dist.group.WORLD, {}
    before = outside()
    for name in ("first", "second"):
        with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
            fabric.launch()
            told[name] = use(fabric) | {"explain": fabric.explain()}
        told[name]["same_group"] = dist.is_initialized() and dist.group.WORLD is group
        after = outside()
        told[name]["left_behind"] = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
    total = torch.ones(())
    dist.all_reduce(total)
    told["sum"] = float(total)
    with open(os.path.join(FOLDER, f"told{dist.get_rank()}.json"), "w") as file:
        json.dump(told, file)
    dist.destroy_process_group()


def sleeps():
    """Until somebody presses Ctrl-C, in a collective on rank 1."""
    with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
        fabric.launch()
        use(fabric)
        print(f"up{fabric.global_rank}", flush=True)
        try:
            time.sleep(100)
        finally:
            print(f"finally{fabric.global_rank}", flush=True)


if __name__ == "__main__":
    {"one_after_the_other": one_after_the_other, "functions": functions, "adopted": adopted, "sleeps": sleeps}[CASE]()
