"""Kubeflow: the pods of a PyTorchJob, one process in each."""

from __future__ import annotations

import os
from typing import ClassVar

from poplin.environments import ClusterEnvironment
from poplin.errors import ContradictionError
from poplin_clusters.variables import number

_REQUIRED = ("KUBERNETES_PORT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
#: Set by torchrun, and by launchers on one node: then the pod isn't one process.
_FOREIGN = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_HINT = "The training operator of Kubeflow sets it in each pod of a PyTorchJob."


class KubeflowEnvironment(ClusterEnvironment):
    """A pod of a PyTorchJob: one process, one device. The operator sets ranks and address.

    For several devices in a pod, start ``torchrun`` or ``poplin run`` in it.
    """

    priority: ClassVar[int] = 20

    @staticmethod
    def detect() -> bool:
        """Whether the operator's variables are set, and those of no other launcher."""
        return all(name in os.environ for name in _REQUIRED) and not any(name in os.environ for name in _FOREIGN)

    @property
    def creates_processes_externally(self) -> bool:
        """True: the operator does."""
        return True

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare with the pods of the job.

        Raises:
            ContradictionError: another number of pods, or several devices in each.
        """
        pods = self.world_size()
        if num_devices != 1 or num_nodes != pods:
            raise ContradictionError(
                f"devices={num_devices} and num_nodes={num_nodes} were asked for, and this PyTorchJob has {pods} "
                f"pod(s) with one process each (WORLD_SIZE={pods}). Use devices=1 and num_nodes={pods}; for several "
                "devices in a pod, start the script with torchrun or `poplin run` there."
            )

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``."""
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``."""
        return number("MASTER_PORT", _HINT)

    def world_size(self) -> int:
        return number("WORLD_SIZE", _HINT)

    def set_world_size(self, size: int) -> None:
        """Nothing: the operator fixes it."""

    def global_rank(self) -> int:
        return number("RANK", _HINT)

    def set_global_rank(self, rank: int) -> None:
        """Nothing: the operator fixes it."""

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return self.global_rank()

    def local_world_size(self) -> int | None:
        return 1
