"""The TensorBoard plugin: what it writes is read back with TensorBoard's own reader."""

import os
import pickle
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("poplin_tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from poplin import Fabric
from poplin.errors import ArgumentValueError
from poplin.loggers import TensorBoardLogger


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder, tag):
    return [(event.step, round(event.value, 6)) for event in events(folder).Scalars(tag)]


def test_by_name_from_package_metadata(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Fabric(accelerator="cpu", devices=1, loggers="tensorboard") as fabric:
        assert type(fabric.logger) is TensorBoardLogger
        for step in (0, 5, 10):
            fabric.log("loss/train", torch.tensor(step / 10), step=step)
        fabric.log_dict({"a": 1, "b": 2.5})
        trace = fabric.explain()
    assert "poplin-tensorboard" in str(trace)
    folder = tmp_path / "lightning_logs" / "version_0"
    assert scalars(folder, "loss/train") == [(0, 0.0), (5, 0.5), (10, 1.0)]
    assert scalars(folder, "b") == [(11, 2.5)]


def test_arguments_of_lightning(tmp_path):
    logger = TensorBoardLogger(tmp_path, "name", "run", True, "train", "sub", flush_secs=5, max_queue=1)
    assert logger.log_dir == str(tmp_path / "name" / "run" / "sub")
    assert (logger.name, logger.version, logger.sub_dir, logger.root_dir) == ("name", "run", "sub", str(tmp_path))
    logger.log_metrics({"loss": 1.0, "pair": {"x": 1, "y": 2}}, step=3)
    logger.experiment.add_text("text", "hello", 1)
    logger.save()
    assert scalars(logger.log_dir, "train-loss") == [(3, 1.0)]
    assert "text/text_summary" in events(logger.log_dir).Tags()["tensors"]
    assert sorted(name for name in os.listdir(logger.log_dir) if "pair" in name) == ["train-pair_x", "train-pair_y"]
    with pytest.raises(ArgumentValueError, match="root_dir/name/version/sub_dir"):
        TensorBoardLogger(tmp_path, log_dir="x")


def test_versions_and_resume(tmp_path):
    first = TensorBoardLogger(tmp_path)
    first.log_metrics({"a": 1}, step=0)
    first.finalize("success")
    first.log_metrics({"a": 2}, step=1)  # opens it again
    first.finalize("success")
    second = TensorBoardLogger(tmp_path)
    assert (first.version, second.version) == (0, 1)
    again = TensorBoardLogger(tmp_path, version=0)
    again.log_metrics({"a": 3}, step=2)
    copy = pickle.loads(pickle.dumps(again))
    copy.log_metrics({"a": 4}, step=3)
    again.finalize("success")
    copy.finalize("success")
    assert scalars(again.log_dir, "a") == [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]
    second.teardown()
    assert not Path(second.log_dir).exists()


def test_hyperparameters(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.log_hyperparams(
        Namespace(lr=0.1, nested={"name": "adam", "betas": (0.9, 0.99)}, flag=True), metrics={"accuracy": 0.9}, step=4
    )
    logger.finalize("success")
    accumulator = events(logger.log_dir)
    data = accumulator.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"nested/name" in data
    assert b"adam" in data
    assert b"(0.9, 0.99)" in data
    assert [event.value for event in accumulator.Scalars("accuracy")] == [pytest.approx(0.9)]
    other = TensorBoardLogger(tmp_path)
    other.log_hyperparams({"lr": 1})
    other.finalize("")
    assert events(other.log_dir).Scalars("hp_metric")[0].value == -1
    assert [path.name for path in Path(other.log_dir).iterdir() if path.is_dir()] == []
    none = TensorBoardLogger(tmp_path, default_hp_metric=False)
    none.log_hyperparams({"lr": 1})
    none.finalize("")
    none.teardown()
    assert len(list((tmp_path / "lightning_logs").iterdir())) == 2


def test_graph_of_a_set_up_module(tmp_path):
    with Fabric(accelerator="cpu", devices=1, loggers=TensorBoardLogger(tmp_path)) as fabric:
        model = fabric.setup(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
        fabric.logger.log_graph(model, torch.randn(1, 2))
        with pytest.raises(ArgumentValueError, match="example_input_array"):
            fabric.logger.log_graph(model)
        folder = fabric.logger.log_dir
    assert events(folder).Graph().node
