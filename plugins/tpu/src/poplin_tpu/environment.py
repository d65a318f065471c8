"""Ranks of processes that torch_xla has started, from its runtime."""

from __future__ import annotations

import os
import sys

from poplin.environments import ClusterEnvironment
from poplin_tpu import runtime

#: torch_xla sets them in each process that it starts.
_VARIABLE = "PJRT_LOCAL_PROCESS_RANK"


class XLAEnvironment(ClusterEnvironment):
    """The processes of ``torch_xla.launch``. In them the runtime knows every rank; before, there is one process."""

    priority = 10

    @staticmethod
    def detect() -> bool:
        """Whether this process is one that torch_xla started."""
        return _VARIABLE in os.environ and "torch_xla" in sys.modules

    @property
    def creates_processes_externally(self) -> bool:
        """Whether they exist already: whether torch_xla has started this one."""
        return self.detect()

    @property
    def main_address(self) -> str:
        """Not needed: the runtime finds the others itself."""
        return "localhost"

    @property
    def main_port(self) -> int:
        return 0

    def world_size(self) -> int:
        return int(runtime.xla("runtime").world_size()) if self.detect() else 1

    def set_world_size(self, size: int) -> None:
        """The runtime decides it."""

    def global_rank(self) -> int:
        return int(runtime.xla("runtime").global_ordinal()) if self.detect() else 0

    def set_global_rank(self, rank: int) -> None:
        """The runtime decides it."""

    def local_rank(self) -> int:
        return int(runtime.xla("runtime").local_ordinal()) if self.detect() else 0

    def node_rank(self) -> int:
        return int(runtime.xla("runtime").host_index()) if self.detect() else 0

    def local_world_size(self) -> int | None:
        return int(runtime.xla("runtime").addressable_device_count()) if self.detect() else None
