"""Set up modules, optimizers and schedulers.

This is the one place that lists the order in which things are done to a module:

1.  names and formats of its parameters are taken; everything that can be refused is refused
2.  the user's own ``torch.compile`` of the whole module is taken off
3.  the precision converts it
4.  it is moved to the device (not from the meta device: there is nothing to move)
5.  optimizers follow its parameters
6.  the strategy does its part: it may parallelise, checkpoint activations, compile regions, shard or replicate, and
    give values to what was on the meta device, in this order
7.  optimizers follow its parameters again, and the strategy wraps them
8.  the user's own ``torch.compile`` is put back, around all that a forward goes through
9.  everything is wrapped

Whatever raises leaves the user's objects as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from poplin.errors import (
    ArgumentValueError,
    UsageError,
)
from poplin.precision.precision import Precision
from poplin.strategies.optimizer_state import optimizer_state_by_name
from poplin.strategies.strategy import Strategy
from poplin.wrappers.checks import (
    check_distinct,
    check_module,
    check_optimizer,
    check_scheduler,
    warn_if_scattered,
)
from poplin.wrappers.compile import compilation_of, without_compile
from poplin.wrappers.module import ModuleLink, wrap_compiled, wrap_module
from poplin.wrappers.optimizer import FabricOptimizer, OptimizerLink, wrap_optimizer
from poplin.wrappers.parts import is_overridden
from poplin.wrappers.repointing import (
    OptimizerBackup,
    ParametersBefore,
    Replacements,
    check_fits,
    parameters_of,
    repoint,
)
from poplin.wrappers.scheduler import wrap_scheduler
from poplin.wrappers.setups import Setups
from poplin.wrappers.sharing import link_of
from poplin.wrappers.undo import ModuleBackup

__all__ = ["SetUp", "Setups", "setup_module", "setup_module_and_optimizers", "setup_optimizers"]


class SetUp(NamedTuple):
    """What was set up."""

    module: nn.Module
    optimizers: list[FabricOptimizer]
    scheduler: Any | None


def setup_module_and_optimizers(
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    scheduler: Any | None = None,
    *,
    setups: Setups,
    move_to_device: bool = True,
    reapply_compile: bool = True,
) -> SetUp:
    """See ``Fabric.setup``.

    Args:
        module: the user's, compiled or not.
        optimizers: the user's; there may be none.
        scheduler: the user's, or None.
        setups: of the Fabric that sets up; it knows strategy and precision.
        move_to_device: whether to move the module.
        reapply_compile: whether the user's ``torch.compile`` goes outside of everything; if not, it stays inside.

    Returns:
        The module, the optimizers in order, and the scheduler.
    """
    check_module(module)
    for optimizer in optimizers:
        check_optimizer(optimizer)
    check_distinct(optimizers)
    check_scheduler(scheduler)
    return _SetupOfModule(module, list(optimizers), scheduler, setups, move_to_device, reapply_compile).run()


def setup_module(
    module: nn.Module, *, setups: Setups, move_to_device: bool = True, reapply_compile: bool = True
) -> nn.Module:
    """See ``Fabric.setup_module``."""
    return setup_module_and_optimizers(
        module, [], setups=setups, move_to_device=move_to_device, reapply_compile=reapply_compile
    ).module


def setup_optimizers(optimizers: Sequence[Optimizer], *, setups: Setups) -> list[FabricOptimizer]:
    """See ``Fabric.setup_optimizers``."""
    strategy = setups.strategy
    if not optimizers:
        raise ArgumentValueError("setup_optimizers() got no optimizer: give it at least one.")
    for optimizer in optimizers:
        check_optimizer(optimizer)
    check_distinct(optimizers)
    if strategy.requires_joint_setup:
        raise UsageError(
            f"{type(strategy).__name__} sets up a module and its optimizers only together: call "
            "model, optimizer = fabric.setup(model, optimizer) instead of setup_module() and setup_optimizers()."
        )
    backups = [OptimizerBackup(optimizer) for optimizer in optimizers]
    try:
        for optimizer in optimizers:
            repoint(optimizer, setups.replacements, None, strategy)
            check_fits(optimizer, setups.replacements)
        wrapped = [
            _wrap_optimizer(optimizer, strategy.setup_optimizer(optimizer), None, setups) for optimizer in optimizers
        ]
    except BaseException:
        for backup in backups:
            backup.restore()
        raise
    setups.add(None, wrapped)
    for wrapper in setups.modules:
        _tell_lightning_module(link_of(wrapper).original, wrapped)
    return wrapped


class _SetupOfModule:
    """One setup of a module, with optimizers or without; the steps are those at the top of this file."""

    def __init__(
        self,
        module: nn.Module,
        optimizers: list[Optimizer],
        scheduler: Any | None,
        setups: Setups,
        move_to_device: bool,
        reapply_compile: bool,
    ) -> None:
        self.strategy: Strategy = setups.strategy
        self.precision: Precision = setups.precision
        self.setups = setups
        self.optimizers = optimizers
        self.scheduler = scheduler
        self.original: nn.Module = without_compile(module)
        self.compilation = compilation_of(module) if reapply_compile else None
        #: What the strategy gets: the compiled module where the compilation is to stay inside.
        self.inner = self.original if reapply_compile else module
        self.user_class = type(self.original)
        self.move_to_device = move_to_device
        self.replacements = Replacements()
        # the optimizers given now, and those of earlier setups, which may hold parameters of this module too
        earlier = [link_of(optimizer).original for optimizer in setups.optimizers]
        self.concerned = [*optimizers, *(one for one in earlier if not any(one is given for given in optimizers))]

    def run(self) -> SetUp:
        """Do it all, or nothing."""
        if self.move_to_device:
            warn_if_scattered(self.original)
        backup = ModuleBackup(self.original)
        backups = [OptimizerBackup(optimizer) for optimizer in self.concerned]
        try:
            self._convert_and_move()
            forward_module, optimizers, scheduler = self._through_strategy()
            for optimizer in self.optimizers if not self.strategy.owns_parameters else ():
                check_fits(optimizer, self.replacements, self.original, self.setups.modules)
            done = self._wrap(forward_module, optimizers, scheduler)
        except BaseException:
            backup.restore()
            for one in backups:
                one.restore()
            raise
        self.setups.replacements.update(self.replacements)
        return done

    def _convert_and_move(self) -> None:
        before = ParametersBefore(self.original)
        if self.precision.converts_module:
            converted = self.precision.convert_module(self.inner)
            if without_compile(converted) is not self.original:
                self.inner = self.original = converted
                self.user_class = type(converted)
        moved = self.move_to_device and not self.strategy.moves_at_setup
        if moved and not any(parameter.is_meta for parameter in self.original.parameters()):
            self.strategy.module_to_device(self.inner)
        self._follow(before)

    def _follow(self, before: ParametersBefore) -> None:
        before.module = self.original
        self.replacements.update(before.replaced())
        for optimizer in self.concerned:
            repoint(optimizer, self.replacements, before, self.strategy)

    def _through_strategy(self) -> tuple[nn.Module, list[Any], Any | None]:
        strategy, before = self.strategy, ParametersBefore(self.original)
        if not self.optimizers:
            forward_module = strategy.setup_module(self.inner)
            self._follow(before)
            return forward_module, [], self.scheduler
        if strategy.requires_joint_setup or is_overridden(strategy, Strategy, "setup_module_and_optimizers"):
            return self._jointly(before)
        forward_module = strategy.setup_module(self.inner)
        self._follow(before)
        return forward_module, [strategy.setup_optimizer(optimizer) for optimizer in self.optimizers], self.scheduler

    def _jointly(self, before: ParametersBefore) -> tuple[nn.Module, list[Any], Any | None]:
        strategy = self.strategy
        states = [optimizer_state_by_name(one, before.names) if one.state else None for one in self.optimizers]
        forward_module, optimizers, scheduler = strategy.setup_module_and_optimizers(
            self.inner, self.optimizers, self.scheduler
        )
        if not strategy.owns_parameters:
            self._follow(before)
            return forward_module, list(optimizers), scheduler
        now = ParametersBefore(self.original).names
        for state in states:
            if state is not None:  # the engine has parameters of its own: the state is handed over by name
                strategy.load_optimizer_state(forward_module, state, now)
        return forward_module, list(optimizers), scheduler

    def _wrap(self, forward_module: nn.Module, optimizers: list[Any], scheduler: Any | None) -> SetUp:
        setups, strategy = self.setups, self.strategy
        link = ModuleLink(self.original, forward_module, strategy, self.precision, setups.guard, strategy.root_device)
        if self.compilation is None:
            wrapper = wrap_module(link, self.user_class)
        else:
            wrapper = wrap_compiled(link, self.compilation, self.user_class)
        model = forward_module if optimizers else None
        wrapped = [
            _wrap_optimizer(raw, stepped, model, setups)
            for raw, stepped in zip(self.optimizers, optimizers, strict=True)
        ]
        if scheduler is not None:
            scheduler = wrap_scheduler(scheduler, wrapped or setups.optimizers, strategy, self.precision)
        setups.add(wrapper, wrapped)
        return SetUp(wrapper, wrapped, scheduler)


def _wrap_optimizer(raw: Optimizer, stepped: Any, model: nn.Module | None, setups: Setups) -> FabricOptimizer:
    callbacks = setups.callbacks
    return wrap_optimizer(
        OptimizerLink(
            stepped if isinstance(stepped, Optimizer) else raw,
            stepped,
            setups.strategy,
            setups.precision,
            model,
            callbacks.live("on_optimizer_step_start"),
            callbacks.live("on_after_optimizer_step"),
        )
    )


def _tell_lightning_module(original: Any, optimizers: Sequence[FabricOptimizer]) -> None:
    """A LightningModule that was set up alone learns of the optimizers that step its parameters."""
    if not hasattr(original, "_fabric"):
        return
    own = {id(parameter) for parameter in original.parameters()}
    its = [one for one in optimizers if any(id(parameter) in own for parameter in parameters_of(one))]
    if its:
        original._fabric_optimizers = [*(getattr(original, "_fabric_optimizers", None) or []), *its]
