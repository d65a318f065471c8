"""The core's own extensions against the public compliance suites."""

import csv
from pathlib import Path

import pytest

from poplin.testing import (
    AcceleratorCompliance,
    CheckpointIOCompliance,
    EnvironmentCompliance,
    LauncherCompliance,
    LoggerCompliance,
    PrecisionCompliance,
    StrategyCompliance,
)

pytestmark = pytest.mark.timeout(600)  # one test launches the ranks for all: on a busy machine it takes its time


class TestCPU(AcceleratorCompliance):
    name = "cpu"


class TestSingleDevice(StrategyCompliance):
    name = "single_device"


class TestFloat32(PrecisionCompliance):
    name = "32-true"
    tolerance = 1e-6


class TestCSV(LoggerCompliance):
    name = "csv"

    def read(self, logger):
        with open(Path(logger.log_dir) / "metrics.csv", newline="") as file:
            return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


class TestTorchCheckpointIO(CheckpointIOCompliance):
    name = "torch"


class TestShardedCheckpointIO(CheckpointIOCompliance):
    name = "sharded"


class TestLocal(EnvironmentCompliance):
    name = "local"
    exempt = {"test_launchers_cannot_change_ranks_that_exist": "no scheduler fixes the ranks: its launchers do"}

    def variables(self, task):
        """Somebody starts every process by hand."""
        return {
            "LOCAL_RANK": str(task.local_rank),
            "NODE_RANK": str(task.node_rank),
            "LOCAL_WORLD_SIZE": str(task.local_size),
            "WORLD_SIZE": str(task.world_size),
            "MASTER_ADDR": task.address,
            "MASTER_PORT": str(task.port),
        }


class TestTorchrun(EnvironmentCompliance):
    name = "torchrun"

    def variables(self, task):
        return {
            "TORCHELASTIC_RUN_ID": "none",
            "RANK": str(task.global_rank),
            "LOCAL_RANK": str(task.local_rank),
            "GROUP_RANK": str(task.node_rank),
            "WORLD_SIZE": str(task.world_size),
            "LOCAL_WORLD_SIZE": str(task.local_size),
            "MASTER_ADDR": task.address,
            "MASTER_PORT": str(task.port),
        }


@pytest.mark.slow
class TestSubprocess(LauncherCompliance):
    name = "subprocess"


@pytest.mark.slow
class TestSpawn(LauncherCompliance):
    name = "spawn"


@pytest.mark.slow
class TestFork(LauncherCompliance):
    name = "fork"


@pytest.mark.slow
class TestForkserver(LauncherCompliance):
    name = "forkserver"
