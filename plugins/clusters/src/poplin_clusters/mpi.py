"""MPI: processes that ``mpirun`` or ``mpiexec`` started."""

from __future__ import annotations

import os
import socket
from typing import Any, ClassVar, NamedTuple

from poplin.environments import ClusterEnvironment
from poplin.errors import ContradictionError, SelectionError
from poplin_clusters.variables import optional_number

#: What each implementation calls its variables: rank, size, local rank, local size.
_DIALECTS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class _World(NamedTuple):
    """What this process knows of the run."""

    rank: int
    size: int
    local_rank: int
    local_size: int


class _Meeting(NamedTuple):
    """What the processes have told each other by MPI."""

    address: str
    port: int
    node_rank: int
    nodes: int


class MPIEnvironment(ClusterEnvironment):
    """A process that ``mpirun`` (or ``mpiexec``) started.

    Ranks come from the launcher's variables. On several nodes, and for a free port on one, the processes tell each
    other by mpi4py where rank 0 is; without it ``MASTER_ADDR`` and ``MASTER_PORT`` must be set.
    """

    priority: ClassVar[int] = 60  # inside an allocation of a scheduler, mpirun is the inner launcher

    def __init__(self) -> None:
        self._meeting: _Meeting | None = None

    @staticmethod
    def detect() -> bool:
        """Whether an MPI launcher has started this process as one of several. MPI itself is not touched."""
        world = _world()
        return world is not None and world.size > 1

    @property
    def creates_processes_externally(self) -> bool:
        """True: mpirun does."""
        return True

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare with the processes that mpirun made.

        Raises:
            ContradictionError: there are more or fewer, in all or on this node.
        """
        world, wanted = self._required_world(), num_devices * num_nodes
        if wanted != world.size or world.local_size != num_devices:
            raise ContradictionError(
                f"devices={num_devices} and num_nodes={num_nodes} make {wanted} process(es), {num_devices} on each "
                f"node, and mpirun has started {world.size}, {world.local_size} of them here. Start the script with "
                f"`mpirun -np {wanted} --map-by ppr:{num_devices}:node python ...`, or ask for what there is: "
                f"devices={world.local_size}, num_nodes={max(1, world.size // max(1, world.local_size))}."
            )

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, or the host of rank 0."""
        return os.environ.get("MASTER_ADDR") or self._meet().address

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``, or one that was free on rank 0's host when the run began."""
        explicit = optional_number("MASTER_PORT")
        return explicit if explicit is not None else self._meet().port

    def world_size(self) -> int:
        return self._required_world().size

    def set_world_size(self, size: int) -> None:
        """Nothing: mpirun fixes it."""

    def global_rank(self) -> int:
        return self._required_world().rank

    def set_global_rank(self, rank: int) -> None:
        """Nothing: mpirun fixes it."""

    def local_rank(self) -> int:
        return self._required_world().local_rank

    def node_rank(self) -> int:
        world = self._required_world()
        return 0 if world.local_size == world.size else self._meet().node_rank

    def local_world_size(self) -> int | None:
        world = _world()
        return None if world is None else world.local_size

    def __getstate__(self) -> dict[str, Any]:
        return {"_meeting": None}

    @staticmethod
    def _required_world() -> _World:
        world = _world()
        if world is None:
            raise SelectionError(
                "No variables of an MPI launcher are set: this process was not started by mpirun or mpiexec. Start the "
                "script with `mpirun -np N python ...`, or leave plugins='mpi' out."
            )
        return world

    def _meet(self) -> _Meeting:
        """Tell the other processes, and be told. Every process comes here, because every one needs address and port."""
        if self._meeting is None:
            self._meeting = _meeting_by_mpi()
        return self._meeting


def _world() -> _World | None:
    for rank, size, local_rank, local_size in _DIALECTS:
        values = [optional_number(name) for name in (rank, size, local_rank, local_size)]
        if values[0] is not None and values[1] is not None and values[2] is not None:
            return _World(values[0], values[1], values[2], values[3] if values[3] is not None else values[1])
    return None


def _meeting_by_mpi() -> _Meeting:
    try:
        from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]
    except (ImportError, RuntimeError) as error:
        raise SelectionError(
            f"The processes of this MPI run can't tell each other where rank 0 is: mpi4py can't be imported ({error}). "
            'Install it (pip install "poplin-clusters[mpi]", with the MPI that mpirun is of), or set MASTER_ADDR and '
            "MASTER_PORT for all of them (mpirun -x MASTER_ADDR -x MASTER_PORT)."
        ) from error
    world = MPI.COMM_WORLD
    host = socket.gethostname()
    address, port = world.bcast((host, _free_port()) if world.Get_rank() == 0 else None, root=0)
    hosts = list(dict.fromkeys(world.allgather(host)))
    return _Meeting("127.0.0.1" if len(hosts) == 1 else address, port, hosts.index(host), len(hosts))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
