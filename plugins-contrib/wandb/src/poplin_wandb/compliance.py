"""The compliance suite of the logger, offline: the files that are to be uploaded are read back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from poplin.testing import LoggerCompliance
from poplin.utilities import import_library
from poplin_wandb import offline


class WandbCompliance(LoggerCompliance):
    """Without an account and without a network."""

    name = "wandb"
    limit = 120
    env: Mapping[str, str] = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_DISABLE_CODE": "true",
        "WANDB_DISABLE_GIT": "true",
    }
    exempt: Mapping[str, str] = {
        "test_what_was_saved_outlives_a_crash": "wandb's process writes its file at intervals, and can't be asked to "
        "do it at once"
    }

    def read(self, logger: Any) -> Sequence[Mapping[str, float]]:
        import_library("wandb", "The logger 'wandb'").teardown()  # its own process writes what it still has
        (path,) = offline.files(logger.save_dir)
        deadline = time.monotonic() + 60
        while not offline.exit_codes(path) and time.monotonic() < deadline:
            time.sleep(0.2)  # that of a process which crashed ends by itself
        return offline.rows(path)
