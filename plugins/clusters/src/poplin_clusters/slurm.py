"""SLURM: processes that ``srun`` started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import ClassVar

from poplin.environments import ClusterEnvironment
from poplin.errors import ContradictionError, SelectionError, UsageError
from poplin_clusters import hostlist
from poplin_clusters.variables import number, optional_number, port_of_job

#: Job names that say "a shell for a person", and always have: with one of them, Poplin starts the processes itself.
INTERACTIVE_NAMES = ("bash", "interactive")
#: The step number that SLURM gives to the shell of ``salloc``.
_INTERACTIVE_STEP = 4294967290
_HINT = "This process is no task of a job step: start the script with srun, or use plugins='local'."


class SLURMEnvironment(ClusterEnvironment):
    """A task of a SLURM job step: the ranks are those that ``srun`` gave.

    A shell for a person (``srun --pty bash``, ``salloc``, a job called ``bash`` or ``interactive``) is not taken for a
    task; a script that is started in one starts its processes itself.
    """

    priority: ClassVar[int] = 50
    preemption_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGUSR1)

    @staticmethod
    def detect() -> bool:
        """Whether this is a task of a job (``SLURM_NTASKS`` is set), and no shell for a person."""
        return "SLURM_NTASKS" in os.environ and not is_interactive()

    @property
    def creates_processes_externally(self) -> bool:
        """True: srun does."""
        return True

    @staticmethod
    def job_id() -> str | None:
        """The job's number, as text; None outside of a job."""
        return os.environ.get("SLURM_JOB_ID")

    @staticmethod
    def job_name() -> str | None:
        """The job's name, or None."""
        return os.environ.get("SLURM_JOB_NAME")

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare with the tasks of the step.

        Raises:
            ContradictionError: there are more or fewer, in all or on a node; the message says how to start them.
            SelectionError: a batch script runs this without srun, and its other tasks don't exist.
        """
        wanted, tasks = num_devices * num_nodes, self.world_size()
        command = f"srun --nodes={num_nodes} --ntasks-per-node={num_devices} python ..."
        if wanted != tasks:
            raise ContradictionError(
                f"devices={num_devices} and num_nodes={num_nodes} make {wanted} process(es), and SLURM has started "
                f"{tasks} (SLURM_NTASKS={tasks}): one process drives one device, and srun must start each. Start the "
                f"script with `{command}` (in a batch script: #SBATCH --nodes={num_nodes} "
                f"--ntasks-per-node={num_devices}, and srun), or ask for what there is: "
                f"devices={self.local_world_size() or tasks}, num_nodes={self._nodes() or 1}. To have Poplin start the "
                "processes of this node itself, use plugins='local'."
            )
        nodes = self._nodes()
        if nodes is not None and nodes != num_nodes:
            raise ContradictionError(
                f"num_nodes={num_nodes} was asked for, and SLURM runs this step on {nodes} node(s). Start the script "
                f"with `{command}`, or use num_nodes={nodes} and devices={tasks // nodes}."
            )
        per_node = _tasks_per_node()
        if per_node is not None and set(per_node) != {num_devices}:
            raise ContradictionError(
                f"devices={num_devices} on each node was asked for, and SLURM runs {per_node} tasks on its nodes. "
                f"Start the script with `{command}`."
            )
        if tasks > 1 and _is_batch_without_step():
            raise SelectionError(
                f"SLURM_NTASKS={tasks}, and this script was started in a batch script without srun, so it is the only "
                f"process. Write `srun python ...` there, or use plugins='local' to have Poplin start {num_devices} on "
                "this node."
            )

    def _nodes(self) -> int | None:
        for name in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
            if (value := optional_number(name)) is not None:
                return value
        return None

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, or the first host of this step (of the job, where there is no step)."""
        if explicit := os.environ.get("MASTER_ADDR"):
            return explicit
        for name in ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"):
            if nodes := os.environ.get(name):
                return self.resolve_root_node_address(nodes)
        return "127.0.0.1"

    @staticmethod
    def resolve_root_node_address(nodes: str) -> str:
        """The first host of a list as SLURM writes it: of ``node[01-03,5],other`` it is ``node01``.

        Raises:
            SelectionError: the list can't be read.
        """
        try:
            return hostlist.first(nodes)
        except ValueError as error:
            raise SelectionError(f"The list of nodes {nodes!r} can't be read: {error}. Set MASTER_ADDR.") from error

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``, or 15000 and the last four digits of the job's number; each further step has its own."""
        job, step = self.job_id() or "", optional_number("SLURM_STEP_ID") or 0
        if not job.isdigit() or step >= _INTERACTIVE_STEP:
            return port_of_job(job, 15000)
        return port_of_job(str((int(job) + 101 * step) % 10000), 15000)

    def world_size(self) -> int:
        tasks = optional_number("SLURM_STEP_NUM_TASKS") if "SLURM_STEP_ID" in os.environ else None
        return tasks if tasks is not None else number("SLURM_NTASKS", _HINT)

    def set_world_size(self, size: int) -> None:
        """Nothing: SLURM fixes it."""

    def global_rank(self) -> int:
        return number("SLURM_PROCID", _HINT)

    def set_global_rank(self, rank: int) -> None:
        """Nothing: SLURM fixes it."""

    def local_rank(self) -> int:
        return number("SLURM_LOCALID", _HINT)

    def node_rank(self) -> int:
        return number("SLURM_NODEID", _HINT)

    def local_world_size(self) -> int | None:
        per_node = _tasks_per_node()
        node = optional_number("SLURM_NODEID")
        return per_node[node] if per_node is not None and node is not None and node < len(per_node) else None

    def requeue(self) -> None:
        """Put this job back into the queue (``scontrol requeue``), which ends it. Call it on one rank, after saving.

        Raises:
            UsageError: there is no job, or SLURM refuses.
        """
        job = self.job_id()
        if (array := os.environ.get("SLURM_ARRAY_JOB_ID")) and (task := os.environ.get("SLURM_ARRAY_TASK_ID")):
            job = f"{array}_{task}"
        if job is None:
            raise UsageError("This process is in no SLURM job, so there is nothing to put back into the queue.")
        command = shutil.which("scontrol")
        if command is None:
            raise UsageError(f"Job {job} can't be put back into the queue: there is no `scontrol` on this node's PATH.")
        result = subprocess.run([command, "requeue", job], capture_output=True, text=True, check=False)
        if result.returncode:
            said = (result.stderr or result.stdout).strip() or f"exit code {result.returncode}"
            raise UsageError(f"Job {job} can't be put back into the queue: `scontrol requeue {job}` says: {said}")


def is_interactive() -> bool:
    """Whether this is a shell for a person, or a script that was started in one without srun."""
    if (optional_number("SLURM_STEP_NUM_TASKS") or 1) > 1 and "SLURM_PTY_PORT" not in os.environ:
        return False  # a real step of several tasks, whatever the allocation around it is called
    return (
        os.environ.get("SLURM_JOB_NAME") in INTERACTIVE_NAMES
        or "SLURM_PTY_PORT" in os.environ
        or os.environ.get("SLURM_STEP_ID") == str(_INTERACTIVE_STEP)
        or ("SLURM_JOB_ID" in os.environ and "SLURM_PROCID" not in os.environ)  # the shell of salloc, outside the nodes
    )


def _is_batch_without_step() -> bool:
    return os.environ.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in os.environ


def _tasks_per_node() -> list[int] | None:
    """The number of tasks on each node, of ``"2(x3),1"``; None where SLURM doesn't say."""
    name = "SLURM_STEP_TASKS_PER_NODE" if "SLURM_STEP_ID" in os.environ else "SLURM_TASKS_PER_NODE"
    text = os.environ.get(name, "")
    counts: list[int] = []
    try:
        for part in filter(None, text.split(",")):
            count, _, times = part.partition("(x")
            counts += [int(count)] * (int(times.rstrip(")")) if times else 1)
    except ValueError:
        return None
    return counts or None
