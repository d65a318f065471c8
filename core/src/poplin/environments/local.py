"""The built-in environment: processes that our own launchers start, or that somebody starts by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from poplin.environments import place as places
from poplin.environments.environment import ClusterEnvironment
from poplin.environments.place import Place
from poplin.errors import ContradictionError, LaunchError

if TYPE_CHECKING:
    from poplin.selection import Selection

#: Stores that a forked process has from its parent. To let go of one ends the process: its threads are not here.
_inherited: list[Any] = []


class LocalEnvironment(ClusterEnvironment):
    """One node, or several on which somebody starts the script by hand.

    On one node nothing has to be set: the launcher starts the processes and they meet on a free port. On several, the
    script is started once on each node, with ``MASTER_ADDR``, ``MASTER_PORT`` and ``NODE_RANK`` set. Who starts every
    process by hand sets ``LOCAL_RANK`` too. (Lightning calls this one ``LightningEnvironment``.)

    Once a launcher has started processes that run this script too, a later Fabric of as many processes is one of the
    same group, and a Fabric of one process is alone in each of them.
    """

    priority = -1_000_000  # where no other detects itself

    def __init__(self) -> None:
        self._local_size = 1
        self._num_nodes = 1
        self._world_size: int | None = None
        self._global_rank: int | None = None
        self._port: int | None = None
        self._server: Any = None
        self._attendance: Any = None

    @staticmethod
    def detect() -> bool:
        """True: where no other environment detects itself, this is it."""
        return True

    # --- selection

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare with the processes that exist already.

        Raises:
            ContradictionError: a launch of another size has been made, and its processes run this script too.
        """
        place = places.current()
        wanted = num_devices * num_nodes
        if place is not None and wanted != 1 and (num_devices, num_nodes) != (place.local_size, place.num_nodes):
            raise ContradictionError(
                f"{num_devices} device(s) on {num_nodes} node(s) were asked for, which makes {wanted} processes, and a "
                f"launch earlier in this run has made {place.world_size} ({place.local_size} on {place.num_nodes} "
                "node(s)) that run this same script. Ask for as many, or for one device, or start the script anew."
            )
        world_size = _number("WORLD_SIZE")
        if place is None and self._is_by_hand and world_size not in (None, wanted):
            raise ContradictionError(
                f"{num_devices} device(s) on {num_nodes} node(s) were asked for, which makes {wanted} processes, and "
                f"the environment says WORLD_SIZE={world_size}. Make them the same, or unset the variable."
            )
        self._local_size, self._num_nodes = num_devices, num_nodes

    def bind(self, selection: Selection) -> None:
        """Take the size of the run; a process that a launch has made answers to its launcher from now on."""
        self._local_size, self._num_nodes = len(selection.devices), selection.num_nodes
        super().bind(selection)
        if self._place is not None and self._attendance is None:
            from poplin.launchers import guest

            self._attendance = guest.attend()

    def teardown(self) -> None:
        """Forget the ranks of this run, and let go of the port."""
        super().teardown()
        self._world_size = self._global_rank = self._port = None
        if self._server is not None and self._server[1] != os.getpid():
            _inherited.append(self._server)
        self._server = None
        if self._attendance is not None:
            self._attendance.leave()
            self._attendance = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_port": None, "_server": None, "_attendance": None, "_unwinds": False}

    # --- who this process is

    @property
    def _place(self) -> Place | None:
        """This process's place in a launch of ours; None if it has none, or has a run of its own."""
        place = places.current()
        return None if place is None or self._local_size * self._num_nodes == 1 < place.world_size else place

    @property
    def _is_by_hand(self) -> bool:
        return "LOCAL_RANK" in os.environ and places.current() is None and not places.is_inherited()

    @property
    def creates_processes_externally(self) -> bool:
        """Whether this is a process that a launcher has started, or somebody by hand (``LOCAL_RANK`` is set)."""
        return (self._place is not None and not places.is_launching()) or self._is_by_hand

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``, and this machine where it isn't set."""
        if (place := self._place) is not None:
            return place.address
        return "127.0.0.1" if self._is_alone_in_a_launch else os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``, and a free one where it isn't set. A free one is held from now on.

        Raises:
            LaunchError: the processes can't agree on one, because nothing has started them all.
        """
        if (place := self._place) is not None:
            return place.port
        if not self._is_alone_in_a_launch and (port := _number("MASTER_PORT")) is not None:
            return port
        if self.world_size() > 1 and (self._is_by_hand or self._num_nodes > 1):
            raise LaunchError(
                f"MASTER_PORT is not set, and {self.world_size()} processes that were started by hand can't agree on "
                "a port by themselves. Set MASTER_ADDR and MASTER_PORT to the same values for all of them (and "
                "NODE_RANK for each node), or use torchrun."
            )
        if self._port is None:
            from poplin.launchers.address import host_store

            store, self._port = host_store()
            self._server = (store, os.getpid())
        return self._port

    @property
    def _is_alone_in_a_launch(self) -> bool:
        return self._place is None and (places.current() is not None or places.is_inherited())

    def world_size(self) -> int:
        return self._world_size if self._world_size is not None else self._local_size * self._num_nodes

    def set_world_size(self, size: int) -> None:
        self._world_size = size

    def global_rank(self) -> int:
        if self._global_rank is not None:
            return self._global_rank
        return self.node_rank() * self._local_size + self.local_rank()

    def set_global_rank(self, rank: int) -> None:
        self._global_rank = rank

    def local_rank(self) -> int:
        if (place := self._place) is not None:
            return place.local_rank
        return _number("LOCAL_RANK") or 0 if self._is_by_hand else 0

    def node_rank(self) -> int:
        """``NODE_RANK`` or ``GROUP_RANK``, and 0 where neither is set."""
        if (place := self._place) is not None:
            return place.node_rank
        if self._is_alone_in_a_launch:
            return 0
        return _number("NODE_RANK") or _number("GROUP_RANK") or 0

    def local_world_size(self) -> int | None:
        """``LOCAL_WORLD_SIZE`` of processes that were started by hand; those of a launch of ours ask again."""
        return _number("LOCAL_WORLD_SIZE") if self._is_by_hand else None


def _number(name: str) -> int | None:
    """An environment variable as an integer; None where it isn't set.

    Raises:
        LaunchError: it is set to something else.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise LaunchError(f"The environment variable {name}={text} is no number. Unset it, or set it right.") from None
