"""The parameters of a module before it is sharded: others take their places."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from poplin.errors import UsageError
from poplin_fsdp.materialise import Deferred


class Before:
    """A module before it is sharded.

    Args:
        module: the user's.
        deferred: what of it has no values yet.

    Raises:
        UsageError: a parameter has hooks, which one that takes its place would not have; or no shape yet.
    """

    def __init__(self, module: nn.Module, deferred: Deferred | None) -> None:
        self.deferred = deferred
        self._places = [
            (part, name, parameter)
            for part in module.modules()
            for name, parameter in part._parameters.items()
            if parameter is not None
        ]
        _refuse(module)

    def keep_attributes(self) -> None:
        """Give attributes that the user set on parameters to those that have taken their places."""
        for part, name, old in self._places:
            new = part._parameters.get(name)
            if new is None or new is old:
                continue
            for attribute, value in vars(old).items():
                new.__dict__.setdefault(attribute, value)


def _refuse(module: nn.Module) -> None:
    named = list(module.named_parameters())
    lazy = [name for name, parameter in named if is_lazy(parameter)]
    if lazy:
        raise UsageError(
            f"{', '.join(lazy[:5])} of {type(module).__name__} have no shape yet (lazy modules): run the module once "
            "before it is set up."
        )
    hooked = [name for name, parameter in named if parameter._backward_hooks or _accumulating(parameter)]
    if hooked:
        raise UsageError(
            f"{', '.join(hooked[:5])} of {type(module).__name__} have hooks, and sharding replaces parameters: the "
            "hooks would never be called again. Do what they do between backward and step, on model.parameters()."
        )


def _accumulating(parameter: nn.Parameter) -> bool:
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))
