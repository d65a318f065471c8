"""What users of wandb expect, with the real library, offline; its files are read back."""

import argparse
import os
import pickle
import subprocess
import sys
import time

import pytest

from poplin import Fabric

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


def finished():
    """Let wandb's own process write what it has."""
    import wandb

    wandb.teardown()


def test_a_run_has_what_was_given_and_what_was_logged(tmp_path):
    import wandb_files

    from poplin_wandb import WandbLogger, offline

    logger = WandbLogger(
        name="baseline", project="digits", group="january", tags=["a", "b"], id="run1", prefix="train",
        save_dir=tmp_path / "logs", offline=True, config={"seed": 1},
    )  # fmt: skip
    (tmp_path / "logs").mkdir()
    fabric = Fabric(accelerator="cpu", devices=1, loggers=logger)
    assert (logger.name, logger.version) == ("digits", "run1")
    logger.log_hyperparams({"lr": 0.1, "optimizer": {"name": "adam", "betas": (0.9, 0.99)}, "model": dict})
    logger.log_hyperparams(argparse.Namespace(lr=0.2))  # a later value counts, and is no error
    fabric.log_dict({"loss": 0.5, "acc/top1": 0.25}, step=5)
    fabric.log("loss", 0.25, step=5)  # the same step again,
    fabric.log("late", 1.0, step=2)  # and an earlier one: neither is dropped
    fabric.log("loss", 0.125)
    assert logger.experiment.group == "january"
    fabric.close()
    finished()
    (path,) = offline.files(tmp_path / "logs")
    rows = [{name: value for name, value in row.items() if not name.startswith("_")} for row in offline.rows(path)]
    assert rows == [
        {"train-loss": 0.5, "train-acc/top1": 0.25, "trainer/global_step": 5},
        {"train-loss": 0.25, "trainer/global_step": 5},
        {"train-late": 1.0, "trainer/global_step": 2},
        {"train-loss": 0.125, "trainer/global_step": 3},
    ]
    config = wandb_files.config(path)
    assert config["seed"] == 1
    assert config["lr"] == 0.2
    assert config["optimizer"] == {"name": "adam", "betas": [0.9, 0.99]}
    run = wandb_files.run_of(path)
    assert (run.run_id, run.project, run.run_group, run.display_name, sorted(run.tags)) == (
        "run1", "digits", "january", "baseline", ["a", "b"],
    )  # fmt: skip
    assert offline.exit_codes(path) == [0]


def test_an_exception_marks_the_run_as_failed_and_a_logger_travels_unopened(tmp_path):
    from poplin_wandb import WandbLogger, offline

    logger = pickle.loads(pickle.dumps(WandbLogger(save_dir=tmp_path, offline=True, project="digits")))

    def fail():
        with Fabric(accelerator="cpu", devices=1, loggers=logger) as fabric:
            fabric.log("loss", 1.0)
            raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        fail()
    finished()
    (path,) = offline.files(tmp_path)
    assert offline.exit_codes(path) == [1]


def test_a_run_of_the_users_own_is_used_and_left_open(tmp_path):
    import wandb

    from poplin_wandb import WandbLogger

    run = wandb.init(project="own", dir=tmp_path, mode="offline")
    try:
        logger = WandbLogger()
        with Fabric(accelerator="cpu", devices=1, loggers=logger) as fabric:
            fabric.log("loss", 1.0)
            assert logger.experiment is run
            assert logger.version == run.id
        assert wandb.run is run
        run.log({"after": 1})  # still open
    finally:
        run.finish()
        finished()


def test_what_wandb_has_written_survives_a_killed_process(tmp_path):
    from poplin_wandb import offline

    script = """
import os, sys, time
from poplin import Fabric
from poplin_wandb import WandbLogger

fabric = Fabric(accelerator="cpu", devices=1, loggers=WandbLogger(save_dir=sys.argv[1], offline=True))
fabric.log("loss", 0.5, step=1)
print("logged", flush=True)
time.sleep(120)
"""
    environment = os.environ | {"WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "0.5"}
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert any("logged" in line for line in process.stdout)
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline and not any(map(offline.rows, offline.files(tmp_path))):
                time.sleep(0.1)
        finally:
            process.kill()
    (path,) = offline.files(tmp_path)
    assert [(row["loss"], row["trainer/global_step"]) for row in offline.rows(path)] == [(0.5, 1)]
