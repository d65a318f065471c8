"""Bring up a strategy without a Fabric, in the processes of :func:`poplin.testing.ranks.run_ranks`.

In the script of a rank::

    strategy = start_strategy(MyStrategy(timeout=30))
    assert strategy.all_reduce(torch.ones(1)).item() == 1
    strategy.teardown()
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from poplin.accelerators.accelerator import Accelerator
from poplin.accelerators.cpu import CPUAccelerator
from poplin.environments.environment import ClusterEnvironment
from poplin.precision.precision import Precision
from poplin.selection.trace import Trace
from poplin.strategies.strategy import Strategy

S = TypeVar("S", bound=Strategy)


class RankEnvironment(ClusterEnvironment):
    """The ranks that ``run_ranks`` puts into the environment, all on one node.

    Args:
        world_size: another world size than the environment's.
    """

    def __init__(self, world_size: int | None = None) -> None:
        self._world_size = int(os.environ.get("WORLD_SIZE", 1)) if world_size is None else world_size

    @staticmethod
    def detect() -> bool:
        return "RANK" in os.environ

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        return int(os.environ.get("MASTER_PORT", 29500))

    def world_size(self) -> int:
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """It is fixed."""

    def global_rank(self) -> int:
        return int(os.environ.get("RANK", 0))

    def set_global_rank(self, rank: int) -> None:
        """It is fixed."""

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    def node_rank(self) -> int:
        return 0


def bind_strategy(
    strategy: S,
    *,
    accelerator: Accelerator | None = None,
    devices: Sequence[torch.device] | None = None,
    precision: Precision | None = None,
    world_size: int | None = None,
) -> S:
    """``strategy``, bound to what the selection would give it; the CPU unless something else is given."""
    environment = RankEnvironment(world_size)
    accelerator = accelerator or CPUAccelerator()
    selection: Any = SimpleNamespace(
        accelerator=accelerator,
        devices=tuple(devices or accelerator.get_parallel_devices(environment.world_size())),
        num_nodes=1,
        environment=environment,
        strategy=strategy,
        precision=precision or Precision(),
        checkpoint_io=None,
        launcher=None,
        trace=Trace(),
        under_cli=False,
        interactive=False,
    )
    strategy.check(selection)
    strategy.bind(selection)
    return strategy


def start_strategy(strategy: S, **options: Any) -> S:
    """Bind ``strategy`` (see :func:`bind_strategy`) and bring up its processes' environment."""
    bind_strategy(strategy, **options).setup_environment()
    return strategy


def error_of(function: Callable[[], Any]) -> dict[str, Any]:
    """What ``function`` raises, in a form that can be reported.

    Returns:
        ``class`` (None if it raised nothing), ``text``, and ``seconds`` that it took.
    """
    start = time.monotonic()
    name, text = None, ""
    try:
        function()
    except Exception as error:
        name, text = type(error).__name__, str(error)
    return {"class": name, "text": text, "seconds": time.monotonic() - start}
