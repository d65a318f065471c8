"""The core's own extensions against the public compliance suites."""

import csv
from pathlib import Path

from poplin.testing import CheckpointIOCompliance, LoggerCompliance, PrecisionCompliance, StrategyCompliance


class TestSingleDevice(StrategyCompliance):
    name = "single_device"


class TestCSV(LoggerCompliance):
    name = "csv"

    def read(self, logger):
        with open(Path(logger.log_dir) / "metrics.csv", newline="") as file:
            return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


class TestTorchCheckpointIO(CheckpointIOCompliance):
    name = "torch"


class TestFloat32(PrecisionCompliance):
    name = "32-true"
    tolerance = 1e-6
