"""The compliance suites of the environments: what each scheduler puts into the environment of a process."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from poplin.testing import EnvironmentCompliance, Task


class SLURMCompliance(EnvironmentCompliance):
    """The variables of ``srun``, in an allocation of as many nodes."""

    name = "slurm"

    def variables(self, task: Task) -> Mapping[str, str]:
        nodes = "node[1-2]" if task.num_nodes > 1 else "node1"
        tasks = f"{task.local_size}(x{task.num_nodes})"
        return {
            "SLURM_NTASKS": str(task.world_size),
            "SLURM_PROCID": str(task.global_rank),
            "SLURM_LOCALID": str(task.local_rank),
            "SLURM_NODEID": str(task.node_rank),
            "SLURM_JOB_ID": "4242",
            "SLURM_JOB_NAME": "training",
            "SLURM_JOB_NUM_NODES": str(task.num_nodes),
            "SLURM_STEP_NUM_NODES": str(task.num_nodes),
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": tasks,
            "SLURM_TASKS_PER_NODE": tasks,
        }


class MPICompliance(EnvironmentCompliance):
    """The variables of Open MPI's ``mpirun``."""

    name = "mpi"
    layouts = ((1, 2),)  # on several nodes processes find each other by MPI itself

    def variables(self, task: Task) -> Mapping[str, str]:
        return {
            "OMPI_COMM_WORLD_RANK": str(task.global_rank),
            "OMPI_COMM_WORLD_SIZE": str(task.world_size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(task.local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(task.local_size),
            "MASTER_ADDR": task.address,
            "MASTER_PORT": str(task.port),
            "NODE_RANK": str(task.node_rank),
        }


class LSFCompliance(EnvironmentCompliance):
    """The variables of LSF and ``jsrun``."""

    name = "lsf"
    layouts = ((1, 2),)  # nodes are told by their host names, and there is one here

    def variables(self, task: Task) -> Mapping[str, str]:
        return {
            "LSB_JOBID": "4242",
            "LSB_HOSTS": f"batch {' '.join([socket.gethostname()] * 2)}",
            "JSM_NAMESPACE_SIZE": str(task.world_size),
            "JSM_NAMESPACE_RANK": str(task.global_rank),
            "JSM_NAMESPACE_LOCAL_RANK": str(task.local_rank),
            "JSM_NAMESPACE_LOCAL_SIZE": str(task.local_size),
        }


class KubeflowCompliance(EnvironmentCompliance):
    """The variables of a PyTorchJob's pods."""

    name = "kubeflow"
    layouts = ((2, 1),)  # one process on each node

    def variables(self, task: Task) -> Mapping[str, str]:
        return {
            "KUBERNETES_PORT": "tcp://10.0.0.1:443",
            "RANK": str(task.global_rank),
            "WORLD_SIZE": str(task.world_size),
            "MASTER_ADDR": task.address,
            "MASTER_PORT": str(task.port),
        }
