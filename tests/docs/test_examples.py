"""The examples run as their first lines say, and do what they promise, from any writable folder."""

import os
import subprocess
import sys
from pathlib import Path

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
