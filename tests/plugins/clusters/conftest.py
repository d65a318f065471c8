"""A SLURM of one node, and MPI, for tests that need the real ones: installed where that is allowed, else skipped."""

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

PACKAGES = ("slurm-wlm", "munge", "openmpi-bin", "libopenmpi-dev")


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def require(*commands):
    """Install what is missing, or skip."""
    missing = [command for command in commands if shutil.which(command) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"not run: {', '.join(missing)} missing, and only root with apt-get can install it")
    done = subprocess.run(
        ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode or any(shutil.which(command) is None for command in commands):
        pytest.skip(f"not run: apt-get can't install {', '.join(missing)}: {done.stderr[-300:]}")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """The environment variables for commands of a SLURM that runs for these tests alone, beside the system's own."""
    require("slurmctld", "slurmd", "munged", "srun")
    if os.geteuid() != 0:
        pytest.skip("not run: a SLURM of one node needs root here")
    folder = tmp_path_factory.mktemp("slurm")
    os.chmod(folder, 0o755)
    key, munge = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(
        f"""
ClusterName=poplin
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthInfo=socket={munge},cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
    )
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    files = {"socket": munge, "key-file": key} | {
        f"{name}-file": folder / f"munge.{name}" for name in ("pid", "log", "seed")
    }
    command = ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())]
    daemons = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
    try:
        time.sleep(0.5)
        for command in ("slurmctld", "slurmd"):
            daemons.append(
                subprocess.Popen([command, "-D"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        for _ in range(60):
            state = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, check=False)
            if state.stdout.strip() == "idle":
                break
            time.sleep(0.5)
        else:
            log = "".join((folder / f"{name}.log").read_text()[-1500:] for name in ("slurmctld", "slurmd"))
            pytest.skip(f"not run: SLURM does not come up here ({state.stdout.strip()} {state.stderr.strip()}): {log}")
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()


@pytest.fixture(scope="session")
def mpi(tmp_path_factory):
    """The environment variables for ``mpirun`` with mpi4py."""
    require("mpirun")
    folder = tmp_path_factory.mktemp("mpi4py")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "mpi4py>=4"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"not run: mpi4py can't be installed: {done.stderr[-300:]}")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
    }
