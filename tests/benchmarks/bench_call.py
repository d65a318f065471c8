"""What ``fabric.call`` costs with ten callbacks and five keyword arguments, beside lightning-fabric in one process.

Bar: at most a tenth of lightning-fabric's.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

from lightning_fabric import Fabric as LightningFabric

from poplin import Fabric

CALLS, PAIRS = 300, 21
ARGUMENTS = {"loss": 1.0, "batch": 2, "batch_idx": 3, "epoch": 4, "step": 5}


class Callback:
    """Takes three of the five."""

    def on_step(self, loss: float, batch: int, epoch: int) -> None:
        """Do nothing."""


def seconds(fabric: Any) -> float:
    """One call, on average."""
    start = time.perf_counter()
    for _ in range(CALLS):
        fabric.call("on_step", **ARGUMENTS)
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    """Measure in turn, and print the medians and their ratio."""
    warnings.simplefilter("ignore")
    ours = Fabric(accelerator="cpu", devices=1, callbacks=[Callback() for _ in range(10)])
    theirs = LightningFabric(accelerator="cpu", devices=1, callbacks=[Callback() for _ in range(10)])
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(PAIRS)]
    poplin, lightning = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"call, 10 callbacks, 5 keyword arguments: poplin {poplin * 1e6:.1f} µs, lightning {lightning * 1e6:.1f} µs")
    print(f"  poplin / lightning-fabric: {ratio:.3f}  (bar: at most 0.1)")
    ours.close()


if __name__ == "__main__":
    main()
