"""Faults that both ranks survive, one after the other, through Fabric: ``faults_in_step.py FOLDER TMPFS``.

After each the ranks must be in step, the checkpoint of before whole, and the folder without anything new. TMPFS is a
small file system of its own, or empty.
"""

import errno
import os
import resource
import signal
import sys
import time

import fsspec
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn

from poplin import Fabric
from poplin.errors import PoplinError
from poplin.strategies import DDPStrategy
from poplin.testing.ranks import report

FOLDER, TMPFS = sys.argv[1], sys.argv[2]
RANK = int(os.environ["RANK"])
PATH = os.path.join(FOLDER, "run.ckpt")
torch.set_num_threads(1)
out = {}


class FullFileSystem(MemoryFileSystem):
    """Takes so many bytes, and then the disk is full."""

    protocol = "full"
    store: dict = {}
    pseudo_dirs = [""]

    def put_file(self, lpath, rpath, **kwargs):
        with open(lpath, "rb") as source, self.open(rpath, "wb") as target:
            target.write(source.read(1000))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


fsspec.register_implementation("full", FullFileSystem)


class Fragile:
    """An object of the user's whose state can't be had on one rank."""

    def __init__(self, breaks_on):
        self.breaks_on = breaks_on

    def state_dict(self):
        if self.breaks_on == RANK:
            raise KeyError("no state here")
        return {"value": 1}

    def load_state_dict(self, state):
        pass


def make(fabric, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    fabric.backward(model(torch.ones(2, 64)).square().mean())
    optimizer.step()
    return model, optimizer


def copy_of(model, optimizer):
    return [tensor.clone() for tensor in tensors(model, optimizer)]


def tensors(model, optimizer):
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return [*model.state_dict().values(), *states]


def equal(some, others):
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return {"class": type(error).__name__, "ours": isinstance(error, PoplinError), "text": str(error)}
    return None


def case(name, function, *args, **kwargs):
    """Run it, and see what it left behind."""
    begun = time.monotonic()
    told = {"error": error_of(function, *args, **kwargs), "seconds": time.monotonic() - begun}
    told["sum"] = float(fabric.all_reduce(torch.tensor(float(RANK + 1)), reduce_op="sum"))
    told["files"] = sorted(os.listdir(FOLDER))
    fresh = make(fabric, seed=9)
    state = {"model": fresh[0], "optimizer": fresh[1], "step": 0}
    fabric.load(PATH, state)
    told["old_one_loads"] = state["step"] == 7 and equal(tensors(*fresh), saved)
    out[name] = told
    fabric.barrier(name)


with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
    fabric.launch()
    model, optimizer = make(fabric, seed=0)
    saved = copy_of(model, optimizer)
    good = {"model": model, "optimizer": optimizer, "step": 7}
    fabric.save(PATH, good)

    # --- a save fails on one rank
    for rank in (0, 1):
        case(f"no_state_on_{rank}", fabric.save, PATH, good | {"fragile": Fragile(rank)})
        case(f"unsafe_on_{rank}", fabric.save, PATH, good | {"extra": (lambda: 0) if rank == RANK else 0})
        case(f"async_on_{rank}", lambda rank=rank: fabric.save_async(PATH, good | {"fragile": Fragile(rank)}).wait())

    # --- the disk is full
    case("full_bucket", fabric.save, "full://bucket/run.ckpt", good)
    out["full_bucket"]["left"] = [str(name) for name in FullFileSystem.store]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # no file may grow beyond: errno EFBIG
    error = error_of(fabric.save, PATH, good)
    later = error_of(lambda: fabric.save_async(PATH, good).wait())
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    case("no_room", lambda: None)
    out["no_room"] |= {"error": error, "later": later}
    if TMPFS:
        small = os.path.join(TMPFS, "run.ckpt")
        fabric.save(small, {"step": 1})
        error = error_of(fabric.save, small, good)
        case("full_disk", lambda: None)
        out["full_disk"] |= {"error": error, "left": os.listdir(TMPFS), "old": fabric.load(small)["step"]}

    # --- rank 0 goes first, and fails
    def first():
        with fabric.rank_zero_first():
            if RANK == 0:
                raise ValueError("the download failed")

    case("rank_zero_first", first)

    # --- a checkpoint that is cut off in the middle, or of which a few bytes changed
    with open(PATH, "rb") as file:
        whole = file.read()
    size = len(whole)
    flipped = bytearray(whole)
    for offset in (size // 7, size // 2):
        flipped[offset] ^= 0xFF
    middle = whole.find(b"\0" * 8, size // 3)
    damage = {
        f"cut_at_{offset}": whole[:offset] for offset in (0, 1, 3, 100, size // 2, size - 100, size - 22, size - 1)
    }
    damage["flipped"] = bytes(flipped)
    damage["zeros"] = whole[: size // 2] + bytes(4096) + whole[size // 2 + 4096 :]
    damage["hole"] = whole[: size // 2] + whole[size // 2 + 4096 :]
    damage["text"] = b"<html>404</html>" * 100
    victim, victim_optimizer = make(fabric, seed=3)
    before = copy_of(victim, victim_optimizer)
    told = out["damage"] = {}
    for name, content in damage.items():
        bad = os.path.join(FOLDER, "bad.ckpt")
        if RANK == 0:
            with open(bad, "wb") as file:
                file.write(content)
        fabric.barrier("written")
        state = {"model": victim, "optimizer": victim_optimizer, "step": 5}
        told[name] = error_of(fabric.load, bad, state)
        if told[name] is not None:
            told[name]["untouched"] = state["step"] == 5 and equal(tensors(victim, victim_optimizer), before)
        fabric.barrier("read")
    if RANK == 0:
        os.unlink(bad)
    fabric.barrier("gone")
    mine_alone = PATH if RANK == 0 else PATH + ".elsewhere"  # a folder of rank 0's machine, say
    case("rank_1_does_not_find_it", fabric.load, mine_alone, {"model": victim})

    # --- collectives that don't fit together
    case("uneven_all_gather", lambda: fabric.all_gather({"a": torch.ones(2 + RANK)}))
    case("uneven_kinds", lambda: fabric.all_gather([torch.ones(2)] if RANK else torch.ones(2)))

# --- one of two ranks is told to end
handlers = signal.getsignal(signal.SIGTERM)
with Fabric(accelerator="cpu", devices=2, strategy="ddp") as fabric:
    fabric.launch()
    model, optimizer = make(fabric, seed=0)
    reads = 0
    while not fabric.should_stop:
        reads += 1
        if reads == 21 and RANK == 1:
            os.kill(os.getpid(), signal.SIGTERM)
    fabric.save(os.path.join(FOLDER, "last.ckpt"), {"model": model, "reads": reads})
    out["preempted"] = {"reads": reads, "again": fabric.should_stop}
out["preempted"]["saved"] = torch.load(os.path.join(FOLDER, "last.ckpt"))["reads"] if RANK == 0 else reads
out["preempted"]["handlers_given_back"] = signal.getsignal(signal.SIGTERM) == handlers

# --- one rank skips a collective
with Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(timeout=4)) as fabric:
    fabric.launch()
    fabric.barrier("both are here")
    begun = time.monotonic()

    def skip():
        if RANK == 0:
            fabric.all_reduce(torch.ones(3))
        fabric.barrier("after the mean")

    out["skipped"] = {"error": error_of(skip), "seconds": time.monotonic() - begun}
report(out)
