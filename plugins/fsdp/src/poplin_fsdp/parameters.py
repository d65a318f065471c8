"""The parameters of a module before it is sharded: others take their places."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from poplin.errors import UsageError
from poplin_fsdp.grouping import Group
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


def make_contiguous(module: nn.Module) -> None:
    """Lay out parameters in C order, which sharding needs: others, channels-last ones for instance, are copied."""
    for parameter in module.parameters():
        if not isinstance(parameter, DTensor) and not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()


def check_dtypes(module: nn.Module, groups: Sequence[Group], ignored: Set[nn.Parameter]) -> None:
    """Refuse trained parameters of several dtypes in one group: their gradients travel together.

    Args:
        module: the user's; it has names.
        groups: innermost first.
        ignored: parameters that are in no group.

    Raises:
        UsageError: there are such.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    seen = {id(parameter) for parameter in ignored}
    for group in groups:
        dtypes: dict[torch.dtype, str] = {}
        for unit in group:
            for parameter in unit.parameters():
                if id(parameter) not in seen and parameter.requires_grad:
                    dtypes.setdefault(parameter.dtype, names.get(id(parameter), "?"))
                seen.add(id(parameter))
        if len(dtypes) > 1:
            told = ", ".join(f"{name} is {str(dtype).removeprefix('torch.')}" for dtype, name in dtypes.items())
            raise UsageError(
                f"{type(module).__name__}: parameters of several dtypes would be gathered together ({told}), which "
                "fully_shard can't. Convert them to one, freeze some, or name the modules that differ in "
                "auto_wrap_policy, so that they are units of their own."
            )


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
