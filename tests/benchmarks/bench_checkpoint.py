"""What a save of 200 MB costs beside torch.save plus fsync; pairs in turn, median of the ratios.

Run it: ``python tests/benchmarks/bench_checkpoint.py [pairs]``. The bar is 1.1.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from poplin import Fabric

MEGABYTES = 200


def plain(path, state):
    torch.save({"model": state["model"].state_dict(), "step": 1}, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def timed(function, *args):
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def interval(values):
    """Median and an interval that holds the true median with about 95 %: order statistics, no distribution assumed."""
    ordered, count = sorted(values), len(values)
    spread = round(0.98 * count**0.5)
    low, high = max(0, count // 2 - spread), min(count - 1, count // 2 + spread)
    return statistics.median(ordered), ordered[low], ordered[high]


def main(pairs=15):
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=1)
    layers = [nn.Linear(1024, 1024, bias=False) for _ in range(MEGABYTES // 4)]
    state = {"model": fabric.setup(nn.Sequential(*layers)), "step": 1}
    saves, asyncs, loads = [], [], []
    with tempfile.TemporaryDirectory(dir=os.environ.get("POPLIN_BENCH_FOLDER")) as name:
        folder = Path(name)
        for index in range(pairs + 2):
            first, second = (plain, fabric.save) if index % 2 else (fabric.save, plain)
            times = {run: timed(run, folder / f"{run.__name__}.ckpt", state) for run in (first, second)}
            start = time.perf_counter()
            handle = fabric.save_async(folder / "async.ckpt", state)
            blocked = time.perf_counter() - start
            handle.wait()
            load = timed(fabric.load, folder / "save.ckpt")
            torch_load = timed(torch.load, folder / "save.ckpt")
            if index >= 2:  # the first ones fill the caches
                saves.append(times[fabric.save] / times[plain])
                asyncs.append(blocked / times[plain])
                loads.append(load / torch_load)
        size = (folder / "save.ckpt").stat().st_size / (folder / "plain.ckpt").stat().st_size
    for what, values in (
        ("save / (torch.save + fsync)", saves),
        ("save_async, until it returns / (torch.save + fsync)", asyncs),
        ("load with every byte checked / torch.load", loads),
    ):
        middle, low, high = interval(values)
        print(f"{what}: {middle:.3f}  [{low:.3f}, {high:.3f}]  ({len(values)} pairs of {MEGABYTES} MB)")
    print(f"size of the file / torch.save's: {size:.4f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
