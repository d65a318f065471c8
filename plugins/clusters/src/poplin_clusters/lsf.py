"""LSF: processes that ``jsrun`` started."""

from __future__ import annotations

import os
import socket
from typing import ClassVar

from poplin.environments import ClusterEnvironment
from poplin.errors import ContradictionError, SelectionError
from poplin_clusters.variables import number, optional_number, port_of_job

_REQUIRED = ("LSB_JOBID", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK")
_HINT = "This process is no task of an LSF job: start the script with jsrun."


class LSFEnvironment(ClusterEnvironment):
    """A task of an LSF job that ``jsrun`` started, one for each device."""

    priority: ClassVar[int] = 70  # jsrun's MPI is inside it

    @staticmethod
    def detect() -> bool:
        """Whether the variables of an LSF job and of jsrun are set."""
        return all(name in os.environ for name in _REQUIRED)

    @property
    def creates_processes_externally(self) -> bool:
        """True: jsrun does."""
        return True

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare with the tasks of the job.

        Raises:
            ContradictionError: there are more or fewer.
        """
        wanted, tasks = num_devices * num_nodes, self.world_size()
        local = self.local_world_size()
        if wanted != tasks or (local is not None and local != num_devices):
            here = "" if local is None else f", {local} of them on this node"
            raise ContradictionError(
                f"devices={num_devices} and num_nodes={num_nodes} make {wanted} process(es), and jsrun has started "
                f"{tasks}{here}. Start the script with `jsrun -n {wanted} -r {num_devices} python ...`, or make "
                "devices and num_nodes what there is."
            )

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, or the host of the first rank."""
        return os.environ.get("MASTER_ADDR") or _hosts()[0]

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``, or 10000 and the last four digits of the job's number."""
        return port_of_job(os.environ.get("LSB_JOBID", ""), 10000)

    def world_size(self) -> int:
        return number("JSM_NAMESPACE_SIZE", _HINT)

    def set_world_size(self, size: int) -> None:
        """Nothing: jsrun fixes it."""

    def global_rank(self) -> int:
        return number("JSM_NAMESPACE_RANK", _HINT)

    def set_global_rank(self, rank: int) -> None:
        """Nothing: jsrun fixes it."""

    def local_rank(self) -> int:
        return number("JSM_NAMESPACE_LOCAL_RANK", _HINT)

    def node_rank(self) -> int:
        """The position of this host among those of the job.

        Raises:
            SelectionError: it isn't one of them.
        """
        hosts = [_short(host) for host in _hosts()]
        here = _short(socket.gethostname())
        if here in hosts:
            return hosts.index(here)
        if len(hosts) == 1:
            return 0
        raise SelectionError(f"This host, {here}, is not among those of the job ({', '.join(hosts)}).")

    def local_world_size(self) -> int | None:
        return optional_number("JSM_NAMESPACE_LOCAL_SIZE")


def _hosts() -> list[str]:
    """The hosts that compute, each once, in the order of ranks.

    Raises:
        SelectionError: LSF doesn't tell.
    """
    path = os.environ.get("LSB_DJOB_RANKFILE") or os.environ.get("LSB_DJOB_HOSTFILE")
    if path:
        try:
            with open(path) as file:
                lines = [line.split()[0] for line in file if line.strip()]
        except OSError as error:
            raise SelectionError(f"The list of hosts {path} can't be read: {error}. Set MASTER_ADDR.") from error
    else:
        lines = os.environ.get("LSB_HOSTS", "").split()
    hosts = list(dict.fromkeys(lines))
    # The job's script runs on a node of its own, which stands first, once, and computes nothing.
    if len(hosts) > 1 and lines.count(hosts[0]) == 1 and lines[0] == hosts[0]:
        hosts = hosts[1:]
    if not hosts:
        raise SelectionError(
            "LSF doesn't tell the hosts of this job (LSB_DJOB_RANKFILE, LSB_DJOB_HOSTFILE and LSB_HOSTS are empty). "
            "Set MASTER_ADDR."
        )
    return hosts


def _short(host: str) -> str:
    return host.partition(".")[0].lower()
