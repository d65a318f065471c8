"""What a sharded save costs beside ``torch.distributed.checkpoint.save``, on two processes; pairs in turn, medians.

Run it: ``python tests/benchmarks/bench_sharded.py [pairs]``. The bars: save 1.05, save_async until it returns 0.2.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from poplin.testing import run_ranks

MEGABYTES = 200

SCRIPT = """
import os, shutil, sys, time
sys.path.insert(0, sys.argv[3])
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from poplin import Fabric
from poplin.testing import report
from sharding import MeshStrategy

pairs, folder, megabytes = int(sys.argv[1]), sys.argv[2], int(sys.argv[4])
torch.set_num_threads(1)
fabric = Fabric(accelerator="cpu", devices=2, strategy=MeshStrategy("rows"))
fabric.launch()
layers = [nn.Linear(1024, 1024, bias=False) for _ in range(megabytes // 4)]
model = fabric.setup(nn.Sequential(*layers))
state = {"model": model, "step": 1}
values = {"model": model.state_dict(), "step": 1}


def plain(path):
    dcp.save(values, checkpoint_id=path)


def ours(path):
    fabric.save(path, state)


def timed(function, path):
    dist.barrier()
    start, busy = time.perf_counter(), time.process_time()
    function(path)
    busy = time.process_time() - busy
    dist.barrier()
    return time.perf_counter() - start, busy


def load_ours(path):
    fabric.load(path, state)


def load_plain(path):
    dcp.load(values, checkpoint_id=path)


times = {"ours": [], "plain": [], "ours, busy": [], "plain, busy": [], "async": [], "load ours": [], "load plain": []}
for index in range(pairs + 2):
    order = [plain, ours] if index % 2 else [ours, plain]
    for function in order:
        path = f"{folder}/{function.__name__}-{index}"
        took, busy = timed(function, path)
        times[function.__name__].append(took)
        times[f"{function.__name__}, busy"].append(busy)
    for name, function, path in (("load ours", load_ours, "ours"), ("load plain", load_plain, "plain")):
        times[name].append(timed(function, f"{folder}/{path}-{index}")[0])
    dist.barrier()
    start = time.perf_counter()
    handle = fabric.save_async(f"{folder}/async-{index}", state)
    times["async"].append(time.perf_counter() - start)
    handle.wait()
    dist.barrier()
    if fabric.is_global_zero:
        for name in ("plain", "ours", "async"):
            shutil.rmtree(f"{folder}/{name}-{index}")
report({name: values[2:] for name, values in times.items()})  # the first ones fill the caches
fabric.close()
"""


def interval(values):
    """Median and an interval that holds the true median with about 95 %: order statistics, no distribution assumed."""
    ordered, count = sorted(values), len(values)
    spread = round(0.98 * count**0.5)
    low, high = max(0, count // 2 - spread), min(count - 1, count // 2 + spread)
    return statistics.median(ordered), ordered[low], ordered[high]


def main(pairs=15):
    beside = Path(__file__).parents[1] / "core" / "checkpoint"
    with tempfile.TemporaryDirectory(dir=os.environ.get("POPLIN_BENCH_FOLDER")) as folder:
        ranks = run_ranks(
            SCRIPT,
            world_size=2,
            args=[str(pairs), folder, str(beside), str(MEGABYTES)],
            env={"OMP_NUM_THREADS": "1"},
            timeout=60 + 20 * pairs,
        )
    times = ranks[0]
    stalls = [max(each) for each in zip(ranks[0]["async"], ranks[1]["async"], strict=True)]
    for what, one, other in (
        ("save / dcp.save", times["ours"], times["plain"]),
        ("save / dcp.save, processor time", times["ours, busy"], times["plain, busy"]),
        ("save_async, until it returns / save", stalls, times["ours"]),
        ("load with every value checked / dcp.load", times["load ours"], times["load plain"]),
    ):
        middle, low, high = interval([a / b for a, b in zip(one, other, strict=True)])
        print(f"{what}: {middle:.3f}  [{low:.3f}, {high:.3f}]  ({len(one)} pairs of {MEGABYTES} MB)")
    print(f"save {statistics.median(times['ours']):.3f} s, dcp.save {statistics.median(times['plain']):.3f} s")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
