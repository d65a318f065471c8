"""Ranks simulated in one process: for tests of what is split over ranks, where real ones would cost seconds."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from poplin.strategies.strategy import Strategy

T = TypeVar("T")
R = TypeVar("R")


class SimulatedStrategy(Strategy):
    """One of several ranks that live in threads of one process, on the CPU.

    ``broadcast`` also works without threads, if rank 0 goes first; ``all_gather`` needs :func:`run_simulated`.
    """

    def __init__(self, rank: int, world: _World) -> None:
        super().__init__(parallel_devices=[torch.device("cpu")])
        self._rank = rank
        self._world = world
        self._calls = 0

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def global_rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world.size

    def broadcast(self, obj: T, src: int = 0) -> T:
        self._calls += 1
        published: T = self._world.publish(self._calls, obj if self._rank == src else None, self._rank == src)
        return published

    def all_gather(self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False) -> Tensor:
        return torch.stack(self._world.exchange(self._rank, tensor))

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        decisions = self._world.exchange(self._rank, decision)
        return sum(decisions) == len(decisions) if all else any(decisions)


class _World:
    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self._timeout = timeout
        self._published: dict[int, Any] = {}
        self._changed = threading.Condition()
        self._barrier = threading.Barrier(size)
        self._slots: list[Any] = [None] * size

    def publish(self, call: int, obj: Any, mine: bool) -> Any:
        with self._changed:
            if mine:
                self._published[call] = obj
                self._changed.notify_all()
            elif not self._changed.wait_for(lambda: call in self._published, self._timeout):
                raise TimeoutError(f"broadcast number {call}: the source rank never came")
            return copy.deepcopy(self._published[call])

    def exchange(self, rank: int, obj: Any) -> list[Any]:
        self._slots[rank] = obj
        self._barrier.wait(self._timeout)
        everything = list(self._slots)
        self._barrier.wait(self._timeout)
        return everything


def simulated_strategies(world_size: int, timeout: float = 10) -> list[SimulatedStrategy]:
    """The strategies of ``world_size`` simulated ranks.

    Args:
        world_size: number of ranks.
        timeout: of a collective, in seconds.
    """
    world = _World(world_size, timeout)
    return [SimulatedStrategy(rank, world) for rank in range(world_size)]


def run_simulated(function: Callable[[SimulatedStrategy], R], world_size: int, timeout: float = 10) -> list[R]:
    """Run ``function(strategy)`` once for each simulated rank, in threads; random-number generators are shared.

    Args:
        function: gets its rank's strategy.
        world_size: number of ranks.
        timeout: of a collective, in seconds.

    Returns:
        What each rank returned. The first error of a rank is raised.
    """
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def run(strategy: SimulatedStrategy) -> None:
        try:
            results[strategy.global_rank] = function(strategy)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(strategy,)) for strategy in simulated_strategies(world_size, timeout)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
