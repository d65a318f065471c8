"""What one Fabric has set up."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from poplin.precision.precision import Precision
from poplin.strategies.optimizer_state import parameter_names
from poplin.strategies.strategy import Strategy
from poplin.wrappers.backward import Backward, backward_function
from poplin.wrappers.compile import without_compile
from poplin.wrappers.module import FabricModule
from poplin.wrappers.optimizer import FabricOptimizer
from poplin.wrappers.passage import BackwardGuard
from poplin.wrappers.repointing import Replacements
from poplin.wrappers.sharing import link_of


class Setups:
    """What one Fabric has set up: modules and optimizers, held weakly, and dataloaders.

    Args:
        strategy, precision: those of the Fabric, bound.
        callbacks: has ``live(hook)``, a live list of functions to call.
    """

    def __init__(self, strategy: Strategy, precision: Precision, callbacks: Any) -> None:
        self.strategy = strategy
        self.precision = precision
        self.callbacks = callbacks
        self.guard = _guard(strategy, precision)
        self.replacements = Replacements()
        #: Every dataloader that was set up, in order.
        self.dataloaders: list[Any] = []
        #: ``backward(tensor, *args, model=None, **kwargs)``
        self.backward: Backward = backward_function(self)
        self._modules: list[weakref.ref[FabricModule]] = []
        self._optimizers: list[weakref.ref[FabricOptimizer]] = []
        self._finishers: list[Callable[[], None]] = []

    @property
    def modules(self) -> list[FabricModule]:
        """The wrapped modules that are still in use, in the order of their setup."""
        return _alive(self._modules)

    @property
    def optimizers(self) -> list[FabricOptimizer]:
        """The wrapped optimizers that are still in use, in the order of their setup."""
        return _alive(self._optimizers)

    def add(self, module: FabricModule | None, optimizers: Iterable[FabricOptimizer]) -> None:
        """Remember what was set up."""
        if module is not None:
            self._modules.append(weakref.ref(module))
        self._optimizers += [weakref.ref(optimizer) for optimizer in optimizers]

    def engines(self) -> list[FabricModule]:
        """The modules that a backward pass can be meant for: those with something to train."""
        return [module for module in self.modules if any(p.requires_grad for p in module.parameters())]

    def wrapper_of(self, module: Any) -> FabricModule | None:
        """The wrapper that this Fabric made for ``module`` (the latest one), given itself, compiled or raw."""
        inner = without_compile(module)
        for wrapper in reversed(self.modules):
            if inner is wrapper or inner is link_of(wrapper).original:
                return wrapper
        return None

    def optimizer_wrapper_of(self, optimizer: Any) -> FabricOptimizer | None:
        """The wrapper that this Fabric made for ``optimizer`` (the latest one), given itself or raw."""
        for wrapper in reversed(self.optimizers):
            link = link_of(wrapper)
            if optimizer is wrapper or optimizer is link.original or optimizer is link.optimizer:
                return wrapper
        return None

    def parameter_names(self, modules: dict[str, nn.Module] | None = None) -> dict[nn.Parameter, str]:
        """The user's name of every parameter of ``modules`` (prefix → module); of all that are set up without it."""
        if modules is None:
            live = [link_of(wrapper).original for wrapper in self.modules]
            modules = {"" if len(live) == 1 else str(number): module for number, module in enumerate(live)}
        return parameter_names(modules)

    def on_finish(self, function: Callable[[], None]) -> None:
        """Call ``function`` when the Fabric is closed (to wait for what runs in the background)."""
        self._finishers.append(function)

    def finish(self) -> None:
        """Finish what runs in the background; the first failure is raised when all are done."""
        failure: BaseException | None = None
        while self._finishers:
            try:
                self._finishers.pop(0)()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    references[:] = [reference for reference in references if reference() is not None]
    return [wrapper for reference in references if (wrapper := reference()) is not None]


def _guard(strategy: Strategy, precision: Precision) -> BackwardGuard | None:
    if strategy.owns_backward:
        return BackwardGuard(f"the strategy {type(strategy).__name__} runs the backward pass itself")
    if precision.scales_loss:
        return BackwardGuard(f"the precision {precision.precision!r} scales the loss")
    return None
