"""The compliance suite of the strategy ``dp``: it runs on CUDA devices only, where the checks have the CPU."""

from __future__ import annotations

from poplin.testing import StrategyCompliance


class DataParallelCompliance(StrategyCompliance):
    """Where there is no CUDA device it is not claimed."""

    name = "dp"
    accelerator = "cuda"
