"""Where this process stands among those of a launch on this node.

A launcher of ours gives every process that it starts a place. It travels in one environment variable that holds the
id of the launching process too: a program that a rank starts inherits the variables of the rank, and must not take
itself for one.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from poplin.errors import LaunchError
from poplin.launchers import processes

#: Holds ``{"launcher": pid, "place": [...]}``.
VARIABLE = "POPLIN_PLACE"


class Place(NamedTuple):
    """One process of a launch."""

    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int
    address: str
    port: int

    @property
    def world_size(self) -> int:
        """Number of processes on all nodes."""
        return self.local_size * self.num_nodes

    @property
    def global_rank(self) -> int:
        """Rank among all of them."""
        return self.node_rank * self.local_size + self.local_rank

    def variables(self, launcher_pid: int = 0, channel: int | None = None) -> dict[str, str | None]:
        """The environment variables of this process: those that torch and others read, and our own.

        Args:
            launcher_pid: of the launching process, where the process learns its place from here. With 0 the variable
                only says that those of the ranks are not for programs that the process starts.
            channel: descriptor of the process's connection to the launching one.
        """
        return {
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "NODE_RANK": str(self.node_rank),
            "GROUP_RANK": str(self.node_rank),
            "RANK": str(self.global_rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            VARIABLE: json.dumps({"launcher": launcher_pid, "place": list(self), "channel": channel}),
        }


_current: Place | None = None
_owner_pid: int | None = None
_launching = False


def take(place: Place | None, launching: bool = False) -> None:
    """This process has ``place``. Called by launchers; None gives it back.

    Args:
        place: where it stands.
        launching: whether it is the process that started the others.
    """
    global _current, _owner_pid, _launching
    _current, _owner_pid, _launching = place, os.getpid(), launching


def is_launching() -> bool:
    """Whether this process has a place, and has started the others of its node itself."""
    return _current is not None and _owner_pid == os.getpid() and _launching


def current() -> Place | None:
    """The place of this process in a launch of ours, or None.

    Raises:
        LaunchError: it has one, and the process that launched it is gone.
    """
    if _current is not None and _owner_pid == os.getpid():
        return _current
    inherited = _read()
    if inherited is None or inherited.launcher == 0:
        return None
    if inherited.launcher == os.getppid():
        return inherited.place
    if os.getppid() == 1 and not processes.exists(inherited.launcher):
        raise LaunchError(
            f"This process is rank {inherited.place.global_rank} of a run whose launching process "
            f"({inherited.launcher}) is gone. Start the script again."
        )
    return None


def is_inherited() -> bool:
    """Whether the ranks in the environment are those of a process that started this one, and not its own."""
    return current() is None and _read() is not None


def channel() -> int | None:
    """Descriptor of the connection to the launching process, in a process that learns its place from there."""
    inherited = _read()
    return None if inherited is None or current() is None else inherited.channel


class _Inherited(NamedTuple):
    launcher: int
    place: Place
    channel: int | None


def _read() -> _Inherited | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        content = json.loads(text)
        return _Inherited(int(content["launcher"]), Place(*content["place"]), content["channel"])
    except (ValueError, KeyError, TypeError):
        return None
