"""all_reduce and broadcast of a strategy against torch.distributed's own, on two ranks: the ratio of the times.

Run it: ``python tests/benchmarks/bench_collectives.py``. The bar for 20 MB is 1.1.
"""

from __future__ import annotations

import json

from poplin.testing.ranks import run_ranks

SCRIPT = """
import os
import random
import statistics
import time

import torch
import torch.distributed as dist

from poplin.strategies import ParallelStrategy
from poplin.testing.ranks import report
from poplin.testing.strategies import start_strategy

RANK = int(os.environ["RANK"])
strategy = start_strategy(ParallelStrategy(timeout=60))


def seconds(function, repeats):
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return time.perf_counter() - start


def ratio(ours, theirs, pairs, repeats):
    # interleaved pairs: both see the same load of the machine; each pair in a random order, the same on every rank
    order = random.Random(0)
    ratios, own, other = [], [], []
    for number in range(pairs + 2):
        if order.random() < 0.5:
            a, b = seconds(ours, repeats), seconds(theirs, repeats)
        else:
            b, a = seconds(theirs, repeats), seconds(ours, repeats)
        if number >= 2:
            ratios.append(a / b), own.append(a / repeats), other.append(b / repeats)
    ratios.sort()
    spread = 1.96 * 0.5 * len(ratios) ** 0.5  # of the median's place: the binomial's standard deviation
    middle = len(ratios) / 2
    return {
        "ratio": statistics.median(ratios),
        "interval": [ratios[max(0, int(middle - spread))], ratios[min(len(ratios) - 1, int(middle + spread))]],
        "ours_us": statistics.median(own) * 1e6,
        "theirs_us": statistics.median(other) * 1e6,
    }


out = {}
for name, count, pairs, repeats in (("20 MB", 5_000_000, 40, 1), ("4 kB", 1_000, 200, 10), ("scalar", 1, 200, 10)):
    tensor = torch.ones(count)
    for op, native in (("max", dist.ReduceOp.MAX), ("mean", dist.ReduceOp.AVG)):
        out[f"all_reduce {op}, {name}"] = ratio(
            lambda: strategy.all_reduce(tensor, reduce_op=op),
            lambda: dist.all_reduce(tensor, native),
            pairs,
            repeats,
        )
    out[f"broadcast, {name}"] = ratio(
        lambda: strategy.broadcast(tensor), lambda: dist.broadcast(tensor, 0), pairs, repeats
    )
report(out)
strategy.teardown()
"""


def main() -> None:
    """Print one line for each case."""
    results = run_ranks(SCRIPT, world_size=2, timeout=300)[0]
    for name, result in results.items():
        low, high = result["interval"]
        print(
            f"{name:<26} {result['ratio']:5.2f} x torch  (95 % interval {low:.2f} to {high:.2f}; "
            f"{result['ours_us']:,.0f} µs against {result['theirs_us']:,.0f} µs)"
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
