"""The examples run as their first lines say, and do what they promise, from any writable folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def run(*words, cwd):
    """The lines that a command prints; it must print no warning."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    return done.stdout.splitlines()


def test_smoke_is_the_same_however_it_is_started(tmp_path):
    smoke = EXAMPLES / "smoke.py"
    help_text = "\n".join(run(smoke, "--help", cwd=tmp_path))
    for option in ("--devices", "--max-steps", "--checkpoint-path"):
        assert option in help_text
    plain = run(smoke, "--max-steps", 5, cwd=tmp_path)
    assert plain[-1] == "ok: 5 steps on 1 process(es), cpu"
    options = ["--accelerator=cpu", "--devices=1"]
    assert run("-m", "poplin", "run", *options, smoke, "--max-steps", 5, cwd=tmp_path) == plain
    assert list(tmp_path.iterdir()) == []


def test_smoke_saves_loads_and_compares_on_two_processes(tmp_path):
    lines = run(EXAMPLES / "smoke.py", *"--devices 2 --max-steps 4 --checkpoint-path x.ckpt".split(), cwd=tmp_path)
    assert lines[-2:] == ["saved to x.ckpt, loaded, and equal", "ok: 4 steps on 2 process(es), cpu"]


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path):
    trainer = EXAMPLES / "trainer.py"
    whole = run(trainer, "--folder", "whole", "--epochs", 3, cwd=tmp_path)
    first = run(trainer, "--folder", "parts", "--epochs", 2, cwd=tmp_path)
    second = run(trainer, "--folder", "parts", "--epochs", 3, cwd=tmp_path)
    assert first[:2] == whole[:2]
    assert second[0] == "resumed after epoch 2"
    assert second[1] == whole[2]
    assert second[1].startswith("epoch 3: validation loss")
    assert whole[-1] == "30 steps, 60 batches in this run"
    assert second[-1] == "30 steps, 20 batches in this run"


def test_the_trainer_on_two_processes_with_a_closure(tmp_path):
    lines = run(EXAMPLES / "trainer.py", *"--devices 2 --epochs 2 --use-closure".split(), cwd=tmp_path)
    assert lines[-1] == "10 steps, 20 batches in this run"


RECORDING = """
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from poplin import Fabric
from trainer import Regression, Trainer

heard = []
class Recorder:
    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        def hook(*args, **kwargs):
            heard.append((name, len(args), sorted(kwargs)))
        return hook

fabric = Fabric(accelerator="cpu", devices=1, callbacks=Recorder())
data = TensorDataset(torch.randn(4, 8), torch.randn(4, 1))
model = Regression()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
trainer = Trainer(fabric, Path("."), accumulate=2, use_closure="closure" in sys.argv)
trainer.fit(model, optimizer, scheduler, DataLoader(data, batch_size=2), DataLoader(data, batch_size=4), epochs=1)
fabric.close()
for name, positional, keywords in heard:
    print(name, positional, *keywords)
"""

#: Hook, number of positional arguments, names of keyword arguments; the loop's own and those that Poplin fires.
BACKWARD = [
    "on_before_backward 1",
    "on_backward_start 0 loss",
    "on_backward_end 0 loss",
    "on_after_backward 0",
]
STEP_START, STEP_END = "on_optimizer_step_start 0 optimizer strategy", "on_after_optimizer_step 0 optimizer strategy"
STEPS = {
    "plain": [*BACKWARD, "on_before_optimizer_step 2", STEP_START, STEP_END],
    "closure": ["on_before_optimizer_step 2", STEP_START, *BACKWARD, STEP_END],
}


@pytest.mark.parametrize("how", STEPS)
def test_every_hook_of_the_trainer_fires_once_and_in_order(how, tmp_path):
    (tmp_path / "record.py").write_text(RECORDING)
    (tmp_path / "trainer.py").write_text((EXAMPLES / "trainer.py").read_text())
    lines = [line for line in run("record.py", how, cwd=tmp_path) if line.startswith("on_")]
    assert lines == [
        "on_after_setup 0 fabric module",
        "on_train_epoch_start 0",
        *["on_train_batch_start 2", *BACKWARD, "on_train_batch_end 3"],
        *["on_train_batch_start 2", *STEPS[how], "on_before_zero_grad 1", "on_train_batch_end 3"],
        "on_train_epoch_end 0",
        "on_validation_model_eval 0",
        "on_validation_epoch_start 0",
        *["on_validation_batch_start 2", "on_validation_batch_end 3"],
        "on_validation_epoch_end 0",
        "on_validation_model_train 0",
        "on_save 0 path state",
        "on_close 0",
    ]


@pytest.mark.slow
def test_a_pipeline_of_two_stages_trains_and_resumes_as_one_process_does(tmp_path):
    def pipeline(*words):
        done = subprocess.run(
            [sys.executable, EXAMPLES / "pipeline.py", *words],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    whole = pipeline(*"--devices 1 --checkpoint-path whole.ckpt".split())
    assert float(whole[-1].split()[1].rstrip("%")) > 95
    assert pipeline(*"--devices 2 --epochs 2 --checkpoint-path parts.ckpt".split())[:2] == whole[:2]
    (tmp_path / "parts.ckpt").rename(tmp_path / "first.ckpt")
    for stages in ("1", "2"):  # a checkpoint of two stages goes on in one process, and in two
        (tmp_path / "parts.ckpt").write_bytes((tmp_path / "first.ckpt").read_bytes())
        lines = pipeline(*f"--devices {stages} --checkpoint-path parts.ckpt".split())
        assert lines[0] == "resumed after epoch 2"
        assert lines[-1].endswith(f"with {stages} stage(s)")
    parts, one = (torch.load(tmp_path / name)["model"] for name in ("parts.ckpt", "first.ckpt"))
    assert list(parts) == list(torch.load(tmp_path / "whole.ckpt")["model"]) == list(one)
    assert all(not torch.equal(parts[name], one[name]) for name in parts)  # every stage has learned on
