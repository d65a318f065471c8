"""What a run would need in memory, for a world that need not be here.

Each strategy is chosen, bound and set up as in a run, over torch's fake process group, which pretends to have the other
ranks; the model stays on the meta device. So what is counted is what the strategy's own sharding gives rank 0, which
gets the largest parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from poplin.environments.environment import ClusterEnvironment
from poplin.errors import ArgumentValueError, PoplinError, UsageError
from poplin.selection import Request, Selection, select
from poplin.strategies.memory import MakeOptimizer, Memory


@dataclass(frozen=True)
class World:
    """How many processes there would be, and on how many machines they are."""

    size: int
    num_nodes: int = 1

    @classmethod
    def of(cls, size: int, devices_per_node: int) -> World:
        """``size`` processes on machines of ``devices_per_node``, full ones where there are several.

        Raises:
            ArgumentValueError: they don't fill the machines.
        """
        if size > devices_per_node and size % devices_per_node:
            raise ArgumentValueError(
                f"A world of {size} does not fill machines of {devices_per_node} devices: ask for a multiple, or say "
                "how many a machine has (--devices-per-node)."
            )
        return cls(size, max(1, size // devices_per_node))


@dataclass(frozen=True)
class Plan:
    """What one process would hold under one strategy, or why that can't be said."""

    strategy: str
    world_size: int
    memory: Memory | None
    reason: str = ""
    #: The name that the strategy was redirected to, else its own.
    served_by: str = ""
    #: The class behind the name: several names may mean one thing.
    strategy_class: str = ""


class PlannedEnvironment(ClusterEnvironment):
    """Rank 0 of a world whose other ranks are not there."""

    def __init__(self, world: World) -> None:
        self._world = world

    def bind(self, selection: Selection) -> None:
        """Nothing: no process is going to be ended."""

    @staticmethod
    def detect() -> bool:
        return False

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "localhost"

    @property
    def main_port(self) -> int:
        return 0

    def world_size(self) -> int:
        return self._world.size

    def set_world_size(self, size: int) -> None:
        """It is fixed."""

    def global_rank(self) -> int:
        return 0

    def set_global_rank(self, rank: int) -> None:
        """It is fixed."""

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return 0


def plan(
    build: Callable[[], nn.Module],
    strategy: str,
    world: World,
    *,
    precision: str | None = None,
    make_optimizer: MakeOptimizer | None = torch.optim.AdamW,
) -> Plan:
    """What rank 0 of ``world`` would hold of the model that ``build`` makes.

    Args:
        build: makes the model; called on the meta device.
        strategy: its lookup name.
        world: the processes that there would be.
        precision: lookup name; None is the default.
        make_optimizer: makes the optimizer of a list of parameters; None leaves optimizer states out.

    Returns:
        The plan; where the strategy can't serve this world, or can't be planned, with the reason.
    """
    with fake_processes(world.size):
        try:
            selection = _selection(strategy, world, precision)
        except PoplinError as error:
            return Plan(strategy, world.size, None, str(error))
        chosen = selection.strategy
        served_by = next(one.choice for one in selection.trace.decisions if one.subject == "strategy")
        known = {"served_by": served_by, "strategy_class": f"{type(chosen).__module__}.{type(chosen).__qualname__}"}
        try:
            chosen.setup_environment()
            module = build_on_meta(build, selection)
            return Plan(strategy, world.size, chosen.planned_memory(module, make_optimizer), **known)
        except Exception as error:  # a strategy of anybody's; the others are still planned
            return Plan(strategy, world.size, None, f"{type(error).__name__}: {error}", **known)
        finally:
            for part in reversed(selection.parts()):
                part.teardown()


def build_on_meta(build: Callable[[], nn.Module], selection: Selection) -> nn.Module:
    """The model of ``build``, on the meta device and converted by the precision.

    Raises:
        ArgumentValueError: it can't be made there, or is no module.
    """
    try:
        with torch.device("meta"), selection.precision.module_init_context():
            module = build()
    except Exception as error:  # the user's own code
        raise ArgumentValueError(
            f"The model could not be made on the meta device: {type(error).__name__}: {error}. Weights must not be "
            "read, and values not be looked at, while it is made."
        ) from error
    if not isinstance(module, nn.Module):
        raise ArgumentValueError(f"What makes the model must return a torch.nn.Module, not a {type(module).__name__}.")
    module = module.to("meta")  # buffers made of NumPy arrays, for instance
    return selection.precision.convert_module(module) if selection.precision.converts_module else module


@contextmanager
def fake_processes(world_size: int) -> Iterator[None]:
    """A default process group of ``world_size`` ranks, of which only this process, rank 0, exists.

    Raises:
        UsageError: this process has a process group.
    """
    if dist.is_initialized():
        raise UsageError(
            "A plan is made over a process group that only pretends to have the other ranks, and this process has one "
            "of its own: run `poplin estimate` in a shell."
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _selection(strategy: str, world: World, precision: str | None) -> Selection:
    request = Request.read(
        accelerator="cpu",
        strategy=strategy,
        devices=world.size // world.num_nodes,
        num_nodes=world.num_nodes,
        precision=precision,
        plugins=[PlannedEnvironment(world)],
        environ={},
    )
    return select(request)
