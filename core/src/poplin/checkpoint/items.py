"""What every object in a state has: a state, a comparison with a saved one, a way back; and the run it stands in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from poplin.checkpoint.check import Findings
from poplin.checkpoint.format import dotted
from poplin.checkpoint.tree import Path
from poplin.wrappers.module import FabricModule
from poplin.wrappers.optimizer import FabricOptimizer
from poplin.wrappers.sharing import link_of

if TYPE_CHECKING:
    from poplin.strategies.strategy import Strategy

#: Undoes a restoring.
Undo = Callable[[], None]


@dataclass
class Run:
    """What the objects' adapters must know of the run."""

    strategy: Strategy
    #: Set-up modules of this Fabric, and its optimizers.
    modules: list[FabricModule] = field(default_factory=list)
    optimizers: list[FabricOptimizer] = field(default_factory=list)
    #: Whether the checkpoint IO takes each rank's part.
    sharded: bool = False
    #: Modules that stand in the state: name → the user's module.
    named_modules: dict[str, nn.Module] = field(default_factory=dict)

    def set_up_module(self, module: nn.Module) -> FabricModule | None:
        """The set-up one of ``module``, or None. A copy of a set-up one is served by no strategy."""
        if isinstance(module, FabricModule):
            return module if link_of(module).strategy is not None else None
        return next((known for known in self.modules if link_of(known).original is module), None)

    def set_up_optimizer(self, optimizer: Optimizer) -> FabricOptimizer | None:
        """The set-up one of ``optimizer``, or None."""
        if isinstance(optimizer, FabricOptimizer):
            return optimizer if link_of(optimizer).strategy is not None else None
        known = (known for known in self.optimizers if optimizer in (link_of(known).original, link_of(known).optimizer))
        return next(known, None)

    def names_elsewhere(self) -> set[str]:
        """Names of parameters that other ranks hold, as an optimizer over one module, or over several, has them."""
        prefix_of = {id(module): prefix for prefix, module in self.naming_modules().items()}
        names: set[str] = set()
        for wrapped in self.modules:
            link = link_of(wrapped)
            for name in self.strategy.names_elsewhere(link.forward_module) if link.strategy is not None else ():
                names |= {name, f"{prefix_of[id(link.original)]}.{name}"}
        return names

    def naming_modules(self) -> dict[str, nn.Module]:
        """Modules that may hold an optimizer's parameters: first those in the state, then all that are set up."""
        named = dict(self.named_modules)
        known = {id(module) for module in named.values()}
        for index, wrapped in enumerate(self.modules):
            original = user_module(wrapped)
            if id(original) not in known:
                named[f"module_{index}"] = original
        return named


def user_module(module: nn.Module) -> nn.Module:
    """The user's module inside ``module``, which may be set up."""
    return link_of(module).original if isinstance(module, FabricModule) else module


def raw_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer that steps inside ``optimizer``, which may be set up."""
    if not isinstance(optimizer, FabricOptimizer):
        return optimizer
    link = link_of(optimizer)
    return link.optimizer if isinstance(link.optimizer, Optimizer) else link.original


class Item(ABC):
    """One object in the state.

    Args:
        path: where it stands.
        value: the object.
        run: the run.
    """

    def __init__(self, path: Path, value: Any, run: Run) -> None:
        self.path, self.value, self.run = path, value, run
        self.name = dotted(path)

    #: Whether giving its state is a collective of the strategy.
    collective = False
    #: Whether restoring it may fail although everything fits: it runs code of the user's.
    may_fail = True
    #: Whether it is restored once more when all else is (a random state, which others may disturb).
    restored_last = False

    @abstractmethod
    def state(self) -> Any:
        """Its state."""

    def adapted(self, saved: Any) -> Any:
        """``saved`` in the form that this object takes: foreign files name and number things in their own way."""
        return saved

    def compare(self, saved: Any, strict: bool, findings: Findings) -> None:  # noqa: B027
        """Note how ``saved`` does not fit. The default accepts anything: only the object knows."""

    def needed(self, saved: Any) -> Any:
        """What of ``saved`` :meth:`restore` looks at, once it was compared: the rest need not be read."""
        return saved

    def layouts(self, saved: Any) -> Mapping[int, Any]:
        """For each tensor in ``saved``, by ``id``, of which this rank needs its part only: a sharded tensor like it."""
        return {}

    @abstractmethod
    def restore(self, saved: Any, strict: bool) -> None:
        """Restore it."""

    @abstractmethod
    def snapshot(self) -> Undo:
        """Keep what it is now; the result puts it back."""
