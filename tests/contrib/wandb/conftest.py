"""wandb without a network, and without what only costs time here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_X_DISABLE_STATS": "true",
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
