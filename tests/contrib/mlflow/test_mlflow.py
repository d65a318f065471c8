"""What users of MLflow expect, with the real library and a database in a file, which is read back."""

import argparse
import pickle

import pytest
import torch

from poplin import Fabric
from poplin.errors import LoggerError

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


@pytest.fixture
def make(tmp_path, monkeypatch):
    from poplin_mlflow import MLFlowLogger

    monkeypatch.chdir(tmp_path)

    def make_one(*args, **kwargs):
        return MLFlowLogger(*args, tracking_uri=f"sqlite:///{tmp_path / 'runs.db'}", **kwargs)

    return make_one


def test_a_run_has_what_was_given_and_what_was_logged_and_can_be_gone_on_in(make, tmp_path):
    logger = make(
        "digits", run_name="baseline", tags={"team": "vision", "number": 3}, prefix="train",
        artifact_location=str(tmp_path / "artifacts"),
    )  # fmt: skip
    with Fabric(accelerator="cpu", devices=1, loggers=logger) as fabric:
        assert logger.version is None  # nothing was logged: no run
        logger.log_hyperparams(
            {"lr": 0.1, "optimizer": {"name": "adam", "deep": {"betas": (0.9, 0.99)}}, "bad name?": 1, "none": None}
        )
        logger.log_hyperparams(argparse.Namespace(lr=0.1, width=8))  # the same value again is fine
        with pytest.warns(UserWarning, match=r"lr \(0.1 -> 0.2\)"):
            logger.log_hyperparams({"lr": 0.2, "long": "x" * 10000})
        fabric.log_dict({"loss": torch.tensor(0.5), "acc/top-1": 0.25, "top@5%": 1}, step=5)
        fabric.log_dict({f"many{number}": number for number in range(1500)}, step=6)
        fabric.log("loss", 0.25)
        file = tmp_path / "figure.txt"
        file.write_text("hello")
        logger.experiment.log_artifact(logger.run_id, file)
        (tmp_path / "folder.ckpt").mkdir()
        (tmp_path / "folder.ckpt" / "part").write_text("1")
        logger.log_checkpoint(tmp_path / "folder.ckpt")
    client = make().experiment
    run = client.get_run(logger.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "baseline")
    assert client.get_experiment(run.info.experiment_id).name == "digits"
    assert (run.data.tags["team"], run.data.tags["number"]) == ("vision", "3")
    params = run.data.params
    assert params["lr"] == "0.1"
    assert params["optimizer/name"] == "adam"
    assert params["optimizer/deep/betas"] == "[0.9, 0.99]"
    assert (params["width"], params["bad name_"], params["none"]) == ("8", "1", "None")
    assert params["long"].startswith("xxx")
    history = client.get_metric_history(logger.run_id, "train-loss")
    assert [(one.step, one.value) for one in history] == [(5, 0.5), (7, 0.25)]
    assert run.data.metrics["train-acc/top-1"] == 0.25
    assert run.data.metrics["train-top_5_"] == 1
    assert sum(name.startswith("train-many") for name in run.data.metrics) == 1500
    assert (tmp_path / "artifacts" / logger.run_id / "artifacts" / "figure.txt").read_text() == "hello"
    assert (tmp_path / "artifacts" / logger.run_id / "artifacts/checkpoints/folder.ckpt/part").exists()

    later = make(run_id=logger.run_id)
    later.log_metrics({"train-loss": 0.1}, step=8)
    assert client.get_run(logger.run_id).info.status == "RUNNING"
    later.finalize("success")
    assert client.get_run(logger.run_id).info.status == "FINISHED"
    assert len(client.get_metric_history(logger.run_id, "train-loss")) == 3


def test_an_exception_marks_the_run_as_failed_and_metrics_in_the_background_arrive(make):
    logger = pickle.loads(pickle.dumps(make("failing", synchronous=False)))

    def fail():
        with Fabric(accelerator="cpu", devices=1, loggers=logger) as fabric:
            for step in range(20):
                fabric.log("loss", float(step), step=step)
            raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        fail()
    client = make().experiment
    assert client.get_run(logger.version).info.status == "FAILED"
    assert len(client.get_metric_history(logger.version, "loss")) == 20


def test_what_the_store_refuses_is_an_error_of_ours(make, monkeypatch, tmp_path):
    from poplin_mlflow import MLFlowLogger

    with pytest.raises(LoggerError, match="MLflow refuses it"):
        make(run_id="0" * 32).log_metrics({"loss": 1.0})
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(LoggerError, match="MLFLOW_ALLOW_FILE_STORE"):
        MLFlowLogger(tracking_uri=f"file:{tmp_path / 'runs'}").log_metrics({"loss": 1.0})
