"""What a step costs beside torch alone, and beside lightning-fabric, and how much memory it takes. Prints a table.

    python tests/gpu/measure.py        (REHEARSE=1: on the CPU, to try the script)

Each round runs ten steps of every contestant one after the other, so that whatever disturbs the machine disturbs all;
a step is timed by CUDA events (the device's time from the first kernel to the last) and on the host's clock (until
the last kernel was queued). What is told is the median over rounds of the difference to torch alone, with the interval
in which the median lies with 95 % probability (order statistics).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import torch
from gpu_support import DEVICE, REHEARSAL, model, why_not
from torch import nn

STEPS = 10
ROUNDS = 20 if REHEARSAL else 300
PRECISIONS = ["32-true", "bf16-mixed", "16-mixed"]
#: What is trained: (name, width, depth, batch size). A step of the first is all overhead; the second is a real one.
MODELS = [("tiny", 64, 3, 32)] if REHEARSAL else [("tiny", 64, 3, 32), ("wide", 2048, 8, 1024)]
OUTPUT = Path(".gpu/measured.md")


class Times(NamedTuple):
    device: float
    host: float


def raw_step(precision: str, width: int, depth: int) -> Callable[[Any], None]:
    """A step by torch alone."""
    dtype = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(precision)
    net = model(width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "16-mixed")

    def step(batch: Any) -> None:
        inputs, targets = batch
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype is not None):
            output = net(inputs)
        loss = nn.functional.mse_loss(output.float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def fabric_step(library: Any, precision: str, width: int, depth: int) -> Callable[[Any], None]:
    """The same step by a Fabric: Poplin's or Lightning's."""
    fabric = library.Fabric(accelerator=DEVICE.type, devices=1, precision=precision)
    fabric.launch()
    net = model(width, depth)
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), fused=True))

    def step(batch: Any) -> None:
        inputs, targets = batch
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        fabric.backward(loss)
        optimizer.step()

    return step


def contestants(precision: str, width: int, depth: int) -> dict[str, Callable[[], Callable[[Any], None]]]:
    """Name → what makes its step."""
    import poplin

    found = {
        "torch": lambda: raw_step(precision, width, depth),
        "poplin": lambda: fabric_step(poplin, precision, width, depth),
    }
    try:
        import lightning_fabric
    except ImportError:
        return found
    return found | {"lightning-fabric": lambda: fabric_step(lightning_fabric, precision, width, depth)}


def timed(step: Callable[[Any], None], batch: Any) -> Times:
    """Microseconds of one of ten steps."""
    if REHEARSAL:
        start = time.perf_counter()
        for _ in range(STEPS):
            step(batch)
        spent = (time.perf_counter() - start) / STEPS * 1e6
        return Times(spent, spent)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start = time.perf_counter()
    before.record()
    for _ in range(STEPS):
        step(batch)
    after.record()
    host = (time.perf_counter() - start) / STEPS * 1e6
    torch.cuda.synchronize()
    return Times(before.elapsed_time(after) / STEPS * 1e3, host)


def interval(values: list[float]) -> str:
    """The median and its 95 % interval by order statistics."""
    ordered = sorted(values)
    spread = 0.98 * len(ordered) ** 0.5
    low = ordered[max(0, int(len(ordered) / 2 - spread))]
    high = ordered[min(len(ordered) - 1, int(len(ordered) / 2 + spread))]
    return f"{statistics.median(ordered):+.1f} [{low:+.1f}, {high:+.1f}]"


def peak_memory(make: Callable[[], Callable[[Any], None]], batch: Any) -> float:
    """MiB that three steps take at most, above what was taken before."""
    if REHEARSAL:
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = make()
    for _ in range(3):
        step(batch)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measured(precision: str, name: str, width: int, depth: int, size: int) -> list[str]:
    """The rows of one precision and model."""
    generator = torch.Generator().manual_seed(0)
    batch = tuple(torch.randn(size, columns, generator=generator).to(DEVICE) for columns in (width, 1))
    makers = contestants(precision, width, depth)
    memory = {who: peak_memory(make, batch) for who, make in makers.items()}
    steps = {who: make() for who, make in makers.items()}
    for step in steps.values():
        for _ in range(5):
            timed(step, batch)
    rounds = [{who: timed(step, batch) for who, step in steps.items()} for _ in range(ROUNDS)]
    rows = []
    for who in steps:
        host = statistics.median(times[who].host for times in rounds)
        device = statistics.median(times[who].device for times in rounds)
        more = "" if who == "torch" else interval([times[who].host - times["torch"].host for times in rounds])
        longer = "" if who == "torch" else interval([times[who].device - times["torch"].device for times in rounds])
        rows.append(
            f"| {name} | {precision} | {who} | {host:.1f} | {more} | {device:.1f} | {longer} | {memory[who]:.1f} |"
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    if (reason := why_not()) is not None:
        print(f"Nothing is measured: this {reason}")
        return
    device = "CPU (a rehearsal: the numbers mean nothing)" if REHEARSAL else torch.cuda.get_device_name()
    lines = [
        f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}; "
        f"µs per step, {ROUNDS} rounds of {STEPS} steps",
        "",
        "| model | precision | by | host | more than torch | device | more than torch | peak MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for name, width, depth, size in MODELS:
        for precision in PRECISIONS:
            lines += measured(precision, name, width, depth, size)
    if not REHEARSAL:
        OUTPUT.parent.mkdir(exist_ok=True)
        OUTPUT.write_text("\n".join(lines) + "\n")
        print(f"\nWritten to {OUTPUT}")


if __name__ == "__main__":
    main()
