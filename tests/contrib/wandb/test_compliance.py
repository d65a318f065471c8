"""The logger against the public compliance suite, with the real library; its offline files are read back."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the ranks of the suite find this file by its path

import wandb_files

from poplin.testing import LoggerCompliance, PackagingCompliance, requirement

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestWandb(LoggerCompliance):
    name = "wandb"
    limit = 120
    env = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_DISABLE_CODE": "true",
        "WANDB_DISABLE_GIT": "true",
    }

    def read(self, logger):
        import wandb

        wandb.teardown()  # its own process writes what it still has
        (path,) = wandb_files.files(logger.save_dir)
        deadline = time.monotonic() + 60
        while not wandb_files.exit_code(path) and time.monotonic() < deadline:
            time.sleep(0.2)  # that of a process which crashed ends by itself
        return wandb_files.rows(path)

    @requirement("Logger.save")
    def test_what_was_saved_outlives_a_crash(self, case):
        """What of this wandb can do is tested in test_wandb.py."""
        case.not_claimed("wandb's process writes its file at intervals, and can't be asked to do it at once")


class TestPackage(PackagingCompliance):
    distribution = "poplin-wandb"
