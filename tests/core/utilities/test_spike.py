"""A jump of the loss ends the training on every rank and is noted."""

import json
import pickle
from types import SimpleNamespace

import pytest
import torch

from poplin.errors import ArgumentValueError
from poplin.testing.simulated import run_simulated, simulated_strategies
from poplin.utilities.spike import SpikeDetection, TrainingSpikeException


def feed(detection, losses, strategy=None):
    strategy = strategy or simulated_strategies(1)[0]
    fabric = SimpleNamespace(strategy=strategy, is_global_zero=strategy.is_global_zero)
    for index, loss in enumerate(losses):
        detection.on_train_batch_end(fabric=fabric, loss=torch.as_tensor(loss), batch=None, batch_idx=index)


def caught_at(detection, losses):
    try:
        feed(detection, losses)
    except TrainingSpikeException as spike:
        return spike.batch_idx
    return None


@pytest.mark.parametrize(
    ("options", "losses", "index"),
    [
        ({}, [1.0, 1.1, 0.9, 5.0], 3),
        ({}, [1.0, 1.1, 0.9, 2.9], None),
        ({"rtol": 0.5}, [1.0, 1.0, 1.6], 2),
        ({"rtol": None, "atol": 0.3}, [1.0, 1.0, 1.4], 2),
        ({"rtol": None, "atol": 0.3}, [1.0, 0.1], None),
        ({"mode": "max", "rtol": 0.5}, [1.0, 1.0, 0.4], 2),
        ({"mode": "max"}, [1.0, 9.0], None),
        ({"warmup": 3}, [1.0, 9.0, 90.0, 900.0], 3),
        ({}, [1.0, float("nan")], 1),
        ({"finite_only": False}, [1.0, float("inf"), 1.0, 1.0], None),
        ({"window": 1, "rtol": 0.5}, [10.0, 1.0, 1.6], 2),
    ],
)
def test_spikes(tmp_path, options, losses, index):
    assert caught_at(SpikeDetection(exclude_batches_path=tmp_path, **options), losses) == index


def test_bad_batches_are_noted_and_added(tmp_path):
    path = tmp_path / "new" / "bad.json"
    assert caught_at(SpikeDetection(exclude_batches_path=path), [1.0, 1.0, 9.0]) == 2
    assert json.loads(path.read_text()) == [1, 2]
    assert caught_at(SpikeDetection(exclude_batches_path=path), [1.0, 1.0, 1.0, 9.0]) == 3
    assert json.loads(path.read_text()) == [1, 2, 3]
    assert [item.name for item in path.parent.iterdir()] == ["bad.json"]


def test_the_folder_of_the_run_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    caught_at(SpikeDetection(), [1.0, 9.0])
    assert json.loads((tmp_path / "skip_batches.json").read_text()) == [0, 1]


def test_a_spike_of_one_rank_ends_all(tmp_path):
    def run(strategy):
        try:
            feed(
                SpikeDetection(exclude_batches_path=tmp_path),
                [1.0, 1.0, 9.0 if strategy.global_rank else 1.0],
                strategy,
            )
        except TrainingSpikeException as spike:
            return spike.batch_idx
        return None

    assert run_simulated(run, 2) == [2, 2]
    assert json.loads((tmp_path / "skip_batches.json").read_text()) == [1, 2]


def test_its_state_is_kept(tmp_path):
    detection = SpikeDetection(window=3, exclude_batches_path=tmp_path)
    feed(detection, [1.0, 2.0])
    other = SpikeDetection(exclude_batches_path=tmp_path)
    other.load_state_dict(detection.state_dict())
    assert other.state_dict() == detection.state_dict()


def test_wrong_arguments_and_the_exception():
    with pytest.raises(ArgumentValueError, match="mode='mean'"):
        SpikeDetection(mode="mean")
    with pytest.raises(ArgumentValueError, match="window=0"):
        SpikeDetection(window=0)
    spike = pickle.loads(pickle.dumps(TrainingSpikeException(3)))
    assert isinstance(spike, RuntimeError)
    assert spike.batch_idx == 3
