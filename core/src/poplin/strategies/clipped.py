"""Clipping by the total norm, of parameters that are listed once: doing it anew costs more than the arithmetic."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import NonFiniteGradientsError
from poplin.strategies.module_names import user_name


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


def clip_norm(
    parameters: list[nn.Parameter],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    module: nn.Module | None,
) -> Tensor:
    """Clip the gradients of ``parameters`` by their total norm, which is returned.

    Args:
        parameters: those whose gradients count.
        max_norm: the greatest total norm.
        norm_type: of the norm.
        error_if_nonfinite: whether to raise where the norm is not finite; gradients are then left as they are.
        module: has names for the parameters.

    Raises:
        NonFiniteGradientsError: the norm is not finite.
    """
    try:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    except RuntimeError as error:
        if not error_if_nonfinite or "non-finite" not in str(error):
            raise
        raise NonFiniteGradientsError(
            f"The total norm of the gradients is non-finite, so they can't be clipped to it.{_culprits(module)} Look "
            "for what went wrong in this step (the loss, the batch, the learning rate), or pass "
            "error_if_nonfinite=False, look at the norm that is returned, and leave the step out where it isn't finite."
        ) from error


def _culprits(module: nn.Module | None) -> str:
    if module is None:
        return ""
    names = [
        user_name(module, name)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and not parameter.grad.isfinite().all()
    ]
    if not names:
        return " (Each single gradient is finite: their squares are too large for the dtype.)"
    others = f" and {len(names) - 3} others" if len(names) > 3 else ""
    return f" Not finite are those of {', '.join(names[:3])}{others}."
