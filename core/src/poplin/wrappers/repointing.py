"""Optimizers follow their parameters when setup replaces, moves or converts these.

That a module's parameters are others after setup is found without knowing any backend: by comparing the parameters
of each name before and after. An optimizer that held the old ones would go on without an error and train nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from poplin.errors import UsageError
from poplin.strategies.module_names import has_wrappers, user_name
from poplin.strategies.optimizer_state import optimizer_state_by_name, parameter_names
from poplin.strategies.strategy import Strategy
from poplin.wrappers.parts import is_overridden

_RIGHT_ORDER = (
    "Set the module up first, then make the optimizer from its parameters, then set that up: "
    "model = fabric.setup_module(model); optimizer = ...(model.parameters()); "
    "optimizer = fabric.setup_optimizers(optimizer)."
)


class Replacements:
    """Which parameter took the place of which, and which went without one that did.

    Weak in the old ones, which are compared by identity.
    """

    def __init__(self) -> None:
        self._new: Any = WeakIdKeyDictionary()
        self._lost: Any = WeakIdKeyDictionary()

    def __len__(self) -> int:
        return len(self._new)

    def add(self, old: Tensor, new: Tensor) -> None:
        """Note that ``new`` stands in the place of ``old``."""
        self._new[old] = new

    def add_lost(self, old: Tensor) -> None:
        """Note that the module has nothing by the name of ``old`` any more."""
        self._lost[old] = True

    def lost(self, parameter: Tensor) -> bool:
        """Whether a module lost ``parameter`` by setup."""
        return parameter in self._lost

    def current(self, parameter: Tensor) -> Tensor:
        """What stands in the place of ``parameter`` now; itself, if it was never replaced."""
        while (new := self._new.get(parameter)) is not None and new is not parameter:
            parameter = new
        return parameter

    def update(self, others: Replacements) -> None:
        """Take over what ``others`` noted."""
        for old, new in others._new.items():
            self._new[old] = new
        for old in others._lost:
            self._lost[old] = True


class ParametersBefore:
    """The parameters of a module before something is done to it.

    Args:
        module: the user's module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._by_name = _parameters_by_name(module)
        self.names = parameter_names({"": module})
        self._format = {id(p): (p.device, p.dtype) for p in self._by_name.values()}

    def replaced(self) -> Replacements:
        """Compare with what the module has now, by name."""
        found = Replacements()
        now = _parameters_by_name(self.module)
        held = {id(parameter) for parameter in now.values()}
        for name, old in self._by_name.items():
            new = now.get(name)
            if id(old) in held:
                continue
            if new is None:
                found.add_lost(old)
            else:
                found.add(old, new)
        return found

    def format_of(self, parameter: Tensor) -> tuple[torch.device, torch.dtype] | None:
        """Device and dtype that the parameter had; None if it was none of the module's."""
        return self._format.get(id(parameter))


def _parameters_by_name(module: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter by the user's name: a wrapper that setup puts around a part changes none of them."""
    named = module.named_parameters(remove_duplicate=False)
    if not has_wrappers(module):
        return dict(named)
    return {user_name(module, name): parameter for name, parameter in named}


class OptimizerBackup:
    """What to put back if setup fails."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = optimizer.param_groups
        self._contents = [(group, dict(group)) for group in optimizer.param_groups]
        self._state = optimizer.state
        self._values = {
            key: dict(state) if isinstance(state, dict) else state for key, state in optimizer.state.items()
        }

    def restore(self) -> None:
        """Put it back."""
        for group, contents in self._contents:
            group.clear()
            group.update(contents)
        self._optimizer.param_groups = self._groups
        self._state.clear()
        self._state.update(self._values)
        self._optimizer.state = self._state


def parameters_of(optimizer: Optimizer) -> Iterator[Any]:
    """Every parameter of the optimizer, in order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def repoint(
    optimizer: Optimizer, replacements: Replacements, before: ParametersBefore | None, strategy: Strategy
) -> bool:
    """Let ``optimizer`` hold the parameters that the modules have now, and its state with them.

    Args:
        optimizer: the user's, or what the strategy made of it.
        replacements: the parameters that are no longer those of a module.
        before: names and formats from before; None if nothing was moved or converted just now.
        strategy: it places the state of parameters whose form has changed.

    Returns:
        Whether any parameter was replaced.

    Raises:
        UsageError: the state doesn't fit the new parameters.
    """
    changes = any(replacements.current(parameter) is not parameter for parameter in parameters_of(optimizer))
    if changes:
        if optimizer.state and is_overridden(strategy, Strategy, "load_optimizer_state"):
            _repoint_by_name(optimizer, replacements, before, strategy)
        else:
            _repoint_directly(optimizer, replacements)
    if before is not None:
        _follow_formats(optimizer, before)
    return changes


def _repoint_directly(optimizer: Optimizer, replacements: Replacements) -> None:
    moved: dict[Any, Any] = {}
    for parameter, state in optimizer.state.items():
        new = replacements.current(parameter) if isinstance(parameter, Tensor) else parameter
        moved[new] = state if new is parameter else _state_for(optimizer, parameter, new, state)
    for group in optimizer.param_groups:
        group["params"] = [replacements.current(parameter) for parameter in group["params"]]
    optimizer.state.clear()
    optimizer.state.update(moved)


def _state_for(optimizer: Optimizer, old: Tensor, new: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape == old.shape:
            if new.shape != old.shape:
                raise UsageError(
                    f"The state of {type(optimizer).__name__} doesn't fit the parameters that setup has made of the "
                    f"module's (shape {tuple(old.shape)} has become {tuple(new.shape)}). {_RIGHT_ORDER}"
                )
            dtype = new.dtype if value.dtype == old.dtype and value.is_floating_point() else value.dtype
            value = value.to(new.device, dtype)
        result[key] = value
    return result


def _repoint_by_name(
    optimizer: Optimizer, replacements: Replacements, before: ParametersBefore | None, strategy: Strategy
) -> None:
    old_names: dict[Any, str] = {}
    for number, parameter in enumerate(parameters_of(optimizer)):
        known = before.names.get(parameter) if before is not None else None
        old_names[parameter] = known if known is not None else f"parameter {number}"
    state = optimizer_state_by_name(optimizer, old_names)
    for group in optimizer.param_groups:
        group["params"] = [replacements.current(parameter) for parameter in group["params"]]
    optimizer.state.clear()
    new_names: Any = {replacements.current(parameter): name for parameter, name in old_names.items()}
    strategy.load_optimizer_state(optimizer, state, new_names)


def _follow_formats(optimizer: Optimizer, before: ParametersBefore) -> None:
    """Move and convert state along with parameters that were moved or converted in place, where it had their format."""
    for group in optimizer.param_groups:
        on_device = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            old = before.format_of(parameter)
            state = optimizer.state.get(parameter)
            if not state or old is None or old == (parameter.device, parameter.dtype):
                continue
            for key, value in state.items():
                if not isinstance(value, Tensor) or not (value.dim() or on_device):
                    continue
                device = parameter.device if value.device == old[0] else value.device
                same = value.dim() and value.dtype == old[1] and value.is_floating_point()
                state[key] = value.to(device, parameter.dtype if same else value.dtype)


def check_fits(
    optimizer: Optimizer,
    replacements: Replacements,
    module: nn.Module | None = None,
    others: Iterable[nn.Module] = (),
) -> None:
    """Refuse an optimizer with which nothing would be trained.

    Args:
        optimizer: after it was re-pointed.
        replacements: what setup did to the parameters of modules.
        module: the one that is set up together with the optimizer, if one is.
        others: modules that were set up before.

    Raises:
        UsageError: parameters without values, or those of a copy of ``module``.
    """
    parameters = list(parameters_of(optimizer))
    without_values = sum(parameter.is_meta for parameter in parameters)
    if without_values:
        raise UsageError(
            f"{without_values} of the {len(parameters)} parameters of {type(optimizer).__name__} are on the meta "
            f"device: they have no values, and the optimizer would train nothing. {_RIGHT_ORDER}"
        )
    lost = sum(replacements.lost(parameter) for parameter in parameters)
    if lost:
        raise UsageError(
            f"{lost} of the {len(parameters)} parameters of {type(optimizer).__name__} are gone from the module, which "
            f"has others by other names since its setup: training them would move nothing. {_RIGHT_ORDER}"
        )
    if module is None:
        return
    known = {id(parameter) for one in (module, *others) for parameter in one.parameters()}
    if any(id(parameter) in known for parameter in parameters):
        return
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if _shapes(parameters) in (_shapes(module.parameters()), _shapes(trained)):
        raise UsageError(
            f"{type(optimizer).__name__} holds parameters like those of {type(module).__name__}, and none that this "
            "module has: they belong to a copy of it, or it has others by now. Training would move nothing. "
            f"{_RIGHT_ORDER}"
        )


def _shapes(parameters: Iterable[Any]) -> list[Any]:
    lazy = nn.parameter.is_lazy
    return [None if lazy(parameter) else tuple(parameter.shape) for parameter in parameters]
