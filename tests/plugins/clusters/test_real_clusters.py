"""A real SLURM of one node, and a real MPI."""

import json
import re
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HELLO = """
    import json, os, sys
    import torch
    from poplin import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    total = fabric.all_reduce(torch.ones(1), reduce_op="sum").item()
    environment = fabric.strategy.cluster_environment
    told = {"rank": fabric.global_rank, "size": fabric.world_size, "total": total, "local": fabric.local_rank,
            "environment": type(environment).__name__, "address": environment.main_address}
    os.write(1, ("TOLD " + json.dumps(told) + "\\n").encode())  # one write, so that ranks don't mix
    fabric.close()
"""

#: Trains until it is told to stop, saves, and puts its job back into the queue; goes on when it comes again.
PREEMPTED = """
    import os, sys, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from poplin import Fabric

    def say(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    class Told:
        def on_preempt(self):
            say("on_preempt", fabric.global_rank)

    folder = sys.argv[1]
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", callbacks=Told())
    fabric.launch()
    model = fabric.setup(torch.nn.Linear(1, 1))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.ones(4000, 1)), batch_size=1, num_workers=1))
    state = {"model": model, "step": 0}
    if os.path.exists(f"{folder}/last.ckpt"):
        fabric.load(f"{folder}/last.ckpt", state)
        say("resumed", fabric.global_rank, state["step"])
    else:
        for batch, in loader:
            state["step"] += 1
            fabric.backward(model(batch).sum())
            if state["step"] == 20:
                say("training", fabric.global_rank)
            if fabric.should_stop:
                time.sleep(1)
                fabric.save(f"{folder}/last.ckpt", state)
                say("saved", fabric.global_rank, state["step"])
                if fabric.is_global_zero:
                    fabric.strategy.cluster_environment.requeue()
                time.sleep(60)
            time.sleep(0.02)
    fabric.close()
"""


def script_of(tmp_path, source):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(source))
    return str(path)


def run(command, env, timeout=120):
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    return done.returncode, done.stdout + done.stderr


def told(output):
    return sorted((json.loads(line) for line in re.findall(r"TOLD (.*)", output)), key=lambda rank: rank["rank"])


def test_slurm_tasks_meet(slurm, tmp_path):
    script = script_of(tmp_path, HELLO)
    code, output = run(["srun", "-n", "2", "--ntasks-per-node=2", sys.executable, script], slurm)
    assert code == 0, output
    assert [(rank["rank"], rank["local"], rank["size"], rank["total"]) for rank in told(output)] == [
        (0, 0, 2, 2.0),
        (1, 1, 2, 2.0),
    ]
    assert {rank["environment"] for rank in told(output)} == {"SLURMEnvironment"}


def test_slurm_one_task_for_two_devices_is_refused(slurm, tmp_path):
    code, output = run(["srun", "-n", "1", sys.executable, script_of(tmp_path, HELLO)], slurm)
    assert code != 0
    assert "SLURM has started 1 (SLURM_NTASKS=1)" in output


def test_slurm_a_shell_starts_its_own_processes_and_torchrun_in_a_step_wins(slurm, tmp_path):
    script = script_of(tmp_path, HELLO)
    code, output = run(["salloc", "-n", "1", sys.executable, script], slurm)
    assert code == 0, output
    assert {rank["environment"] for rank in told(output)} == {"LocalEnvironment"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    code, output = run(["srun", "-n", "1", *torchrun, script], slurm)
    assert code == 0, output
    assert [rank["environment"] for rank in told(output)] == ["TorchrunEnvironment"] * 2


def test_slurm_takes_a_job_away_and_it_comes_back(slurm, tmp_path):
    """SIGUSR1 to every process of the step, loader workers included; save on the same step; requeue; resume."""
    job, log = tmp_path / "job.sh", tmp_path / "job.log"
    job.write_text(
        f"#!/bin/sh\n#SBATCH --ntasks=2 --ntasks-per-node=2 --requeue --open-mode=append --output={log}\n"
        f"srun {sys.executable} {script_of(tmp_path, PREEMPTED)} {tmp_path}\n"
    )
    code, output = run(["sbatch", "--parsable", str(job)], slurm)
    assert code == 0, output
    number = output.strip()
    try:
        wait_for(log, lambda text: text.count("training") == 2)
        run(["scancel", "--signal=USR1", f"{number}.0"], slurm)
        text = wait_for(log, lambda text: text.count("resumed") == 2, timeout=240)
    finally:
        run(["scancel", number], slurm)
    assert sorted(re.findall(r"on_preempt (\d)", text)) == ["0", "1"]
    saved = dict(re.findall(r"saved (\d) (\d+)", text))
    assert saved["0"] == saved["1"]
    assert re.findall(r"resumed \d (\d+)", text) == [saved["0"]] * 2


def test_mpi_processes_meet(mpi, tmp_path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
    code, output = run([*command, script_of(tmp_path, HELLO)], mpi)
    assert code == 0, output
    assert [(rank["rank"], rank["local"], rank["size"], rank["total"]) for rank in told(output)] == [
        (0, 0, 2, 2.0),
        (1, 1, 2, 2.0),
    ]
    assert {rank["environment"] for rank in told(output)} == {"MPIEnvironment"}


def wait_for(log, condition, timeout=120):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        text = log.read_text() if log.exists() else ""
        if condition(text):
            return text
        time.sleep(0.2)
    raise AssertionError(f"it takes longer than {timeout} s:\n{text}")
