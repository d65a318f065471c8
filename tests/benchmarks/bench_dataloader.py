"""What iterating a set-up dataloader costs over the plain one, on the CPU: microseconds a batch.

Run it: ``python tests/benchmarks/bench_dataloader.py``. The bar is 2 µs a batch. lightning-fabric stands beside it
where it is installed.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from poplin.data.setup import setup_dataloader
from poplin.strategies.single_device import SingleDeviceStrategy

BATCHES_A_CHUNK = 10
PAIRS = 600


class Ready(Dataset):
    """Samples that cost nothing, so that the difference is seen."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        return self.sample


def first(samples: list[Any]) -> Any:
    """No collation."""
    return samples[0]


def chunks(loader: Any) -> Iterator[float]:
    """Microseconds a batch of one chunk after the other, over as many epochs as it takes."""
    while True:
        iterator = iter(loader)
        for _ in range(2000 // BATCHES_A_CHUNK):
            start = time.perf_counter()
            for _ in range(BATCHES_A_CHUNK):
                next(iterator)
            yield (time.perf_counter() - start) / BATCHES_A_CHUNK * 1e6
        for _ in iterator:
            pass


def overhead(wrapped: Any, plain: Any) -> tuple[float, float, float, float]:
    """Median of the differences of interleaved chunks, its interval, and the median of the plain loader."""
    ours, theirs = chunks(wrapped), chunks(plain)
    order = random.Random(0)
    differences, base = [], []
    for _ in range(PAIRS):
        if order.random() < 0.5:
            a, b = next(ours), next(theirs)
        else:
            b, a = next(theirs), next(ours)
        differences.append(a - b)
        base.append(b)
    differences.sort()
    spread = int(1.96 * 0.5 * PAIRS**0.5)
    middle = PAIRS // 2
    low, high = differences[middle - spread], differences[middle + spread]
    return statistics.median(differences), low, high, statistics.median(base)


def contenders() -> Iterator[tuple[str, Callable[[DataLoader[Any]], Any]]]:
    """Name and setup function of each."""
    strategy = SingleDeviceStrategy("cpu")
    yield "poplin", lambda loader: setup_dataloader(loader, strategy=strategy)
    try:
        from lightning_fabric import Fabric
    except ImportError:
        return
    fabric = Fabric(accelerator="cpu", devices=1)
    yield "lightning-fabric", fabric.setup_dataloaders


def main() -> None:
    """Print one line for each kind of batch."""
    tensor = torch.zeros(8)
    batches = {"a tensor": tensor, "two tensors": [tensor, tensor], "a dict of two": {"x": tensor, "y": tensor}}
    for (name, set_up), (kind, batch) in itertools.product(contenders(), batches.items()):
        loader = DataLoader(Ready(batch), batch_size=1, collate_fn=first)
        median, low, high, base = overhead(set_up(loader), DataLoader(Ready(batch), batch_size=1, collate_fn=first))
        print(f"{name:<17}{kind:<14}+{median:5.2f} µs a batch  [{low:5.2f}, {high:5.2f}]  over {base:5.1f} µs")


if __name__ == "__main__":
    main()
