"""Saving in the background."""

import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from torch import nn

import poplin.checkpoint.asynchronous as asynchronous
from poplin.checkpoint import TorchCheckpointIO
from poplin.errors import CheckpointError, UnsafeCheckpointError


class SlowIO(TorchCheckpointIO):
    """Writes when it is told to."""

    def __init__(self):
        self.go = threading.Event()
        self.writing = 0

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.writing += 1
        assert self.writing == 1
        assert self.go.wait(20)
        super().save_checkpoint(checkpoint, path, storage_options)
        self.writing -= 1


def test_the_state_is_the_one_at_the_call(saver, trained, tmp_path):
    slow = saver.strategy.checkpoint_io = SlowIO()
    model, optimizer, _ = trained()
    tied = torch.ones(3)
    state = {"model": model, "optimizer": optimizer, "n": {"list": [1], "step": 1}, "tied": [tied, tied], "set": {1}}
    then = {name: value.clone() for name, value in model.state_dict().items()}
    handle = saver.save_async(tmp_path / "a.ckpt", state)
    assert not handle.done()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    tied.zero_()
    state["n"]["list"].append(2)
    state["n"]["step"] = 2
    state["set"].add(2)
    optimizer.param_groups[0]["lr"] = 99.0
    del state["model"]
    slow.go.set()
    handle.wait()
    assert handle.done()
    data = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert all(torch.equal(data["model"][name], value) for name, value in then.items())
    assert data["n"] == {"list": [1], "step": 1}
    assert data["set"] == {1}
    assert data["optimizer"]["param_groups"][0]["lr"] == 0.1 / 4
    assert data["tied"][0].tolist() == [1.0] * 3
    assert data["tied"][0].data_ptr() == data["tied"][1].data_ptr()
    handle.wait()  # once more is fine


def test_the_next_save_waits_and_memory_is_reused_only_then(saver, tmp_path):
    slow = saver.strategy.checkpoint_io = SlowIO()
    tensor = torch.ones(1000)
    first = saver.save_async(tmp_path / "a.ckpt", {"x": tensor})
    tensor.fill_(2)
    timer = threading.Timer(0.2, slow.go.set)
    timer.start()
    second = saver.save_async(tmp_path / "b.ckpt", {"x": tensor})
    assert first.done()
    second.wait()
    saver.save(tmp_path / "c.ckpt", {"x": tensor})
    assert torch.load(tmp_path / "a.ckpt")["x"][0] == 1
    assert torch.load(tmp_path / "b.ckpt")["x"][0] == 2


def test_what_goes_wrong_is_told_at_wait_or_at_the_next_save_or_at_the_end_and_once(saver, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnsafeCheckpointError):
        saver.save_async(tmp_path / "a.ckpt", {"x": object()})
    handle = saver.save_async(tmp_path / "folder", {"x": 1})
    with pytest.raises(CheckpointError, match="is a folder"):
        handle.wait()
    saver.save(tmp_path / "a.ckpt", {"x": 1})
    saver.save_async(tmp_path / "folder", {"x": 1})
    with pytest.raises(CheckpointError, match="is a folder"):
        saver.save(tmp_path / "a.ckpt", {"x": 2})
    assert saver.load(tmp_path / "a.ckpt") == {"x": 1}
    for failed in (False, True):
        saver.save_async(tmp_path / "folder", {"x": 1})
        with pytest.raises(CheckpointError, match="is a folder"):
            asynchronous.close(saver.strategy, failed=failed)
        asynchronous.close(saver.strategy, failed=failed)


def test_a_load_sees_what_is_being_written(saver, tmp_path):
    slow = saver.strategy.checkpoint_io = SlowIO()
    model = nn.Linear(2, 2)
    saver.save_async(tmp_path / "a.ckpt", {"model": model})
    threading.Timer(0.2, slow.go.set).start()
    other = nn.Linear(2, 2)
    saver.load(tmp_path / "a.ckpt", {"model": other})
    assert torch.equal(model.weight, other.weight)


def test_the_end_of_the_process_waits(tmp_path):
    script = """
        import sys, torch
        from poplin import Fabric
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric.save_async(sys.argv[1], {"x": torch.ones(5_000_000), "step": 1})
        raise SystemExit(3)
    """
    path = tmp_path / "a.ckpt"
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(script), path], capture_output=True, text=True)
    assert result.returncode == 3, result.stderr
    assert TorchCheckpointIO().load_checkpoint(path)["step"] == 1
