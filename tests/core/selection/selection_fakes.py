"""Extensions for devices, clusters and engines that aren't here. Each is a subclass of the real interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from poplin.accelerators import Accelerator
from poplin.checkpoint import CheckpointIO
from poplin.environments import ClusterEnvironment
from poplin.launchers import Launcher
from poplin.precision import Precision
from poplin.strategies import Strategy


class GPU(Accelerator):
    """Four devices of a type that torch knows by name only."""

    device_type = "meta"
    roles = ("auto", "gpu")
    priority = 10
    here: ClassVar[bool] = True

    @staticmethod
    def name() -> str:
        return "fakegpu"

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        return cls.here, "4 fake devices" if cls.here else "no fake driver"

    @classmethod
    def auto_device_count(cls) -> int:
        return 4


class AbsentGPU(GPU):
    here = False


class Cluster(ClusterEnvironment):
    """Started two processes on each of ``world / 2`` nodes."""

    detected: ClassVar[bool] = True
    world: ClassVar[int] = 2
    local: ClassVar[int | None] = 2

    @staticmethod
    def detect() -> bool:
        return Cluster.detected

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 29500

    def world_size(self) -> int:
        return self.world

    def set_world_size(self, size: int) -> None: ...

    def global_rank(self) -> int:
        return 0

    def set_global_rank(self, rank: int) -> None: ...

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return 0

    def local_world_size(self) -> int | None:
        return self.local


class Many(Strategy):
    """For several devices, with processes to be launched."""

    needs_launch = True

    def __init__(self, cluster_environment: Any = None, launcher: Any = None, label: str = "", **carried: Any) -> None:
        super().__init__(**carried)
        self.cluster_environment = cluster_environment
        self.launcher = launcher
        self.label = label

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0]


class Half(Precision):
    precision = "16-mixed"
    scales_loss = True


class Files(CheckpointIO):
    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None: ...

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        return {}

    def remove_checkpoint(self, path: Any) -> None: ...

    @classmethod
    def recognises(cls, path: Any) -> bool:
        return str(path).endswith(".fake")


class Rerun(Launcher):
    """Would start the script again."""

    is_interactive_compatible = False

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


class Notebook(Rerun):
    is_interactive_compatible = True


class Metrics:
    """A logger of nobody's class."""

    def log_metrics(self, metrics: Any, step: Any = None) -> None: ...
