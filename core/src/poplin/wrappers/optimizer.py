"""The wrapper of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from poplin.precision.precision import Precision
from poplin.strategies.strategy import Strategy
from poplin.wrappers.parts import has_part, is_overridden
from poplin.wrappers.sharing import (
    Kept,
    Shared,
    delegates,
    has_own,
    link_of,
    looking_like,
    made_class,
    share,
)

#: Functions to call, with keyword arguments, when a hook happens; live, and empty while nobody has it.
Handlers = list[Callable[..., Any]]


class OptimizerLink:
    """What a wrapped optimizer knows.

    Args:
        original: the optimizer whose attributes are shared.
        optimizer: what the strategy's ``setup_optimizer`` returned: it is what steps.
        strategy: None in a copy, which no strategy serves.
        precision: it has a part in the step where gradients are scaled.
        model: what ``setup_module`` returned, where both were set up together.
        on_start, on_end: handlers of the hooks around a step.
    """

    __slots__ = (
        "attempted",
        "model",
        "on_end",
        "on_start",
        "optimizer",
        "original",
        "override",
        "precision",
        "skipped",
        "strategy",
        "through",
        "tracked",
    )

    def __init__(
        self,
        original: Optimizer,
        optimizer: Any,
        strategy: Strategy | None,
        precision: Precision,
        model: nn.Module | None,
        on_start: Handlers,
        on_end: Handlers,
    ) -> None:
        self.original = original
        self.optimizer = optimizer
        self.strategy = strategy
        self.precision = precision
        self.model = model
        self.on_start = on_start
        self.on_end = on_end
        #: What somebody, as learning-rate schedulers do, has put in the place of ``step``.
        self.override: Callable[..., Any] | None = None
        #: Counted for schedulers that must not advance when steps are skipped.
        self.tracked = False
        self.attempted = 0
        self.skipped = 0
        #: None where neither strategy nor precision has a part in a step.
        self.through: Callable[..., Any] | None = None
        if strategy is None:
            if is_overridden(precision, Precision, "optimizer_step"):
                self.through = precision.optimizer_step
        elif has_part(strategy, precision, "optimizer_step"):
            self.through = self._by_strategy

    def _by_strategy(self, optimizer: Any, **kwargs: Any) -> Any:
        assert self.strategy is not None
        result = self.strategy.optimizer_step(optimizer, model=self.model, **kwargs)
        if self.tracked:
            self.attempted += 1
            self.skipped += bool(self.strategy.step_was_skipped(optimizer, self.model))
        return result

    def told(self) -> Any:
        """What callbacks are shown: the raw optimizer, or the engine that steps."""
        if self.strategy is not None and self.strategy.owns_parameters and self.model is not None:
            return self.model
        return self.optimizer


class _Step(property):
    """``step``, which learning-rate schedulers replace on the instance."""

    #: ``Optimizer.__setstate__``, and so ``load_state_dict``, would else replace this property on the class.
    hooked = True


class FabricOptimizer(Shared, Optimizer):
    """An optimizer that went through ``Fabric.setup`` or ``Fabric.setup_optimizers``.

    It is an instance of your optimizer's class and shares all its attributes, in both directions.
    """

    __slots__ = ()

    @property
    def optimizer(self) -> Any:
        """The optimizer that steps: your own, or what the strategy made of it."""
        return link_of(self).optimizer

    def _poplin_step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step by strategy and precision.

        Args:
            closure: runs forward and backward again and returns the loss.
            kwargs: handed on.

        Returns:
            What the optimizer returned: the closure's loss.
        """
        link: OptimizerLink = self._poplin_link  # type: ignore[attr-defined]
        if link.on_start:
            for fire in link.on_start:
                fire(strategy=link.strategy, optimizer=link.told())
        if link.through is not None:
            if closure is not None:
                kwargs["closure"] = closure
            result = link.through(link.optimizer, **kwargs)
        elif closure is None:
            result = link.optimizer.step(**kwargs)
        else:
            result = link.optimizer.step(closure, **kwargs)
        if link.on_end:
            for fire in link.on_end:
                fire(strategy=link.strategy, optimizer=link.told())
        return result

    def _poplin_get_step(self) -> Callable[..., Any]:
        return self._poplin_link.override or self._poplin_step  # type: ignore[attr-defined]

    def _poplin_set_step(self, step: Callable[..., Any]) -> None:
        link_of(self).override = step

    def _poplin_delete_step(self) -> None:
        link_of(self).override = None

    step = _Step(_poplin_get_step, _poplin_set_step, _poplin_delete_step)

    def _poplin_class_for(self, user_class: type) -> type:
        return _optimizer_class(link_of(self), user_class)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        link = link_of(self)
        return rebuild_optimizer, (link.original, Kept(link.precision))


def wrap_optimizer(link: OptimizerLink) -> FabricOptimizer:
    """Wrap ``link.original``."""
    return share(_optimizer_class(link, type(link.original)), link.original, link)


def rebuild_optimizer(original: Optimizer, kept: Kept) -> FabricOptimizer:
    """A wrapper around a copied or unpickled optimizer: the precision stays, and no strategy serves it."""
    return wrap_optimizer(OptimizerLink(original, original, None, kept.precision, None, [], []))


def _optimizer_class(link: OptimizerLink, user_class: type) -> type[FabricOptimizer]:
    forwards_zero_grad = link.strategy is not None and is_overridden(link.strategy, Strategy, "zero_grad")
    clashes = has_own(link.original, "optimizer")

    def namespace() -> dict[str, Any]:
        members = delegates(user_class, Optimizer) if clashes else {}
        if forwards_zero_grad:
            members["zero_grad"] = looking_like(user_class.zero_grad, _zero_grad, "zero_grad")  # type: ignore[attr-defined]
        for name in ("optimizer", "step"):
            members.pop(name, None)
        return members

    return made_class(FabricOptimizer, user_class, (forwards_zero_grad, clashes), namespace)


def _zero_grad(self: Any, set_to_none: bool = True) -> None:
    link = self._poplin_link
    link.strategy.zero_grad(link.optimizer, model=link.model, set_to_none=set_to_none)
