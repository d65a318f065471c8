"""Which parameters a clipping concerns, listed once: doing it anew costs more than the clipping's own arithmetic."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer


class _Listed(NamedTuple):
    optimizer: weakref.ref[Optimizer]
    module: weakref.ref[nn.Module]
    stepped: list[nn.Parameter]
    clipped: list[nn.Parameter]


class ClippedParameters:
    """For each optimizer the parameters that it steps and that belong to the module given last.

    What an optimizer steps is looked at each time. What a module has is walked again when the optimizer's parameters,
    or the module, are others than last time.
    """

    def __init__(self) -> None:
        self._listed: dict[int, _Listed] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ClippedParameters, ()  # in another process there is nothing to remember

    def of(self, module: nn.Module, optimizer: Optimizer, stepped: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Those of ``stepped`` that ``module`` has.

        Args:
            module: only its parameters.
            optimizer: under which the list is kept.
            stepped: the parameters that ``optimizer`` steps.
        """
        parameters = list(stepped)
        known = self._listed.get(id(optimizer))
        if (
            known is not None
            and known.optimizer() is optimizer
            and known.module() is module
            and _same(known.stepped, parameters)
        ):
            return known.clipped
        wanted = {id(parameter) for parameter in module.parameters()}
        clipped = [parameter for parameter in parameters if id(parameter) in wanted]
        self._listed = {key: listed for key, listed in self._listed.items() if listed.optimizer() is not None}
        self._listed[id(optimizer)] = _Listed(weakref.ref(optimizer), weakref.ref(module), parameters, clipped)
        return clipped


def _same(one: list[nn.Parameter], other: list[nn.Parameter]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))
