"""The wrapper of a learning-rate scheduler: it does not advance on steps that loss scaling skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poplin.precision.precision import Precision
from poplin.strategies.strategy import Strategy
from poplin.wrappers.optimizer import FabricOptimizer, OptimizerLink
from poplin.wrappers.parts import has_part
from poplin.wrappers.sharing import Shared, link_of, made_class, share


class SchedulerLink:
    """What a wrapped scheduler knows: the optimizers whose steps count, and how many there were at its last step."""

    __slots__ = ("attempted", "optimizers", "original", "skipped")

    def __init__(self, original: Any, optimizers: Sequence[OptimizerLink]) -> None:
        self.original = original
        self.optimizers = optimizers
        for optimizer in optimizers:
            optimizer.tracked = True
        self.attempted, self.skipped = self.counts()

    def counts(self) -> tuple[int, int]:
        """Steps so far, and how many of them were skipped."""
        return sum(one.attempted for one in self.optimizers), sum(one.skipped for one in self.optimizers)

    def nothing_moved(self) -> bool:
        """Whether optimizers stepped since the last call, and every one of these steps was skipped."""
        before = self.attempted, self.skipped
        self.attempted, self.skipped = self.counts()
        steps, skips = self.attempted - before[0], self.skipped - before[1]
        return steps > 0 and steps == skips


class FabricScheduler(Shared):
    """A learning-rate scheduler that went through ``Fabric.setup``.

    It is an instance of your scheduler's class and shares all its attributes. Its ``step`` does nothing if the
    optimizer was stepped since the last one and every such step was skipped by loss scaling; stepped once an epoch, it
    therefore misses no epoch in which anything moved.
    """

    __slots__ = ()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step your scheduler, unless nothing moved since its last step."""
        link: SchedulerLink = link_of(self)
        return None if link.nothing_moved() else link.original.step(*args, **kwargs)

    def _poplin_class_for(self, user_class: type) -> type:
        return _scheduler_class(user_class)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return rebuild_scheduler, (link_of(self).original,)


def rebuild_scheduler(original: Any) -> Any:
    """A copied or unpickled scheduler is the user's own again: it belongs to no optimizer that counts."""
    return original


def wrap_scheduler(
    scheduler: Any, optimizers: Sequence[FabricOptimizer], strategy: Strategy, precision: Precision
) -> Any:
    """Wrap ``scheduler`` where a step may be skipped; elsewhere there is nothing to do, and it is returned as it is.

    Args:
        scheduler: the user's.
        optimizers: those that were set up together with it.
        strategy: it says whether steps may be skipped;
        precision: or this does.
    """
    may_skip = precision.scales_loss or has_part(strategy, precision, "step_was_skipped")
    if not may_skip or not optimizers or not callable(getattr(scheduler, "step", None)):
        return scheduler
    links: list[OptimizerLink] = [link_of(optimizer) for optimizer in optimizers]
    stepped = getattr(scheduler, "optimizer", None)
    own = [link for link in links if stepped is not None and _is_of(stepped, link)]
    return share(_scheduler_class(type(scheduler)), scheduler, SchedulerLink(scheduler, own or links))


def _is_of(optimizer: Any, link: OptimizerLink) -> bool:
    return optimizer is link.original or optimizer is link.optimizer or optimizer.__dict__ is link.original.__dict__


def _scheduler_class(user_class: type) -> type[FabricScheduler]:
    return made_class(FabricScheduler, user_class, (), dict)
