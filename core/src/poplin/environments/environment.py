"""The interface of a cluster environment: who this process is among all of the run."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from poplin.extension import Extension
from poplin.utilities import unwinding

if TYPE_CHECKING:
    from poplin.selection import Selection


class ClusterEnvironment(Extension, ABC):
    """Tells ranks, world size and the rendezvous address, as whatever started the processes set them."""

    #: Among the detecting environments the highest priority wins; the innermost launcher should have it.
    priority: ClassVar[int] = 0
    #: The signals by which its scheduler gives notice that the job will be taken away.
    preemption_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGUSR1)

    _unwinds = False

    def bind(self, selection: Selection) -> None:
        """Called once by the selection. In a process that exists as one of several, SIGTERM unwinds from now on.

        That is, ``finally`` blocks run when another rank has failed and whoever started the processes ends this one. A
        handler of the user's own is left as it is.
        """
        if self.creates_processes_externally and not self._unwinds:
            self._unwinds = True
            unwinding.install()

    def teardown(self) -> None:
        """Give the signal back. Called by ``Fabric.close``."""
        if self._unwinds:
            self._unwinds = False
            unwinding.restore()

    @staticmethod
    @abstractmethod
    def detect() -> bool:
        """Whether this process was started by that environment. Called by the selection; must be quick."""

    @property
    @abstractmethod
    def creates_processes_externally(self) -> bool:
        """Whether the processes exist already. Read by the selection and by launchers."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """Host name or address of the rendezvous, on the node of global rank 0."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """Port of the rendezvous."""

    @abstractmethod
    def world_size(self) -> int:
        """Number of processes in the run. Called by strategies, once processes exist."""

    @abstractmethod
    def set_world_size(self, size: int) -> None:
        """Called by launchers where the environment doesn't fix it; a no-op where it does."""

    @abstractmethod
    def global_rank(self) -> int:
        """Rank of this process among all. Called by strategies, once processes exist."""

    @abstractmethod
    def set_global_rank(self, rank: int) -> None:
        """Called by launchers where the environment doesn't fix it; a no-op where it does."""

    @abstractmethod
    def local_rank(self) -> int:
        """Rank of this process on its node: the index into the devices. Called by strategies, once processes exist."""

    @abstractmethod
    def node_rank(self) -> int:
        """Rank of this node. Called by strategies and launchers."""

    def local_world_size(self) -> int | None:
        """Number of processes on this node, or None where the environment can't tell.

        Called by the selection for ``devices="auto"`` where the processes exist already. The default is None.
        """
        return None

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare what the user asked for with what the environment provides.

        Called by the selection. The default accepts all.

        Raises:
            SelectionError: they differ; both are named.
        """
