"""Metrics as plain numbers."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from poplin.errors import ArgumentTypeError, ArgumentValueError


def to_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """``metrics`` with each value as a plain number.

    Args:
        metrics: name → a number, a tensor with one element, a NumPy scalar, or anything else that is a real number.

    Raises:
        ArgumentTypeError: a value is no number, or a name is no string.
        ArgumentValueError: a tensor or an array has more elements than one, or none.
    """
    if not isinstance(metrics, Mapping):
        raise ArgumentTypeError(f"Metrics are a dictionary {{name: number}}, and this is a {type(metrics).__name__}.")
    return {_name(name): _number(name, value) for name, value in metrics.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"The name of a metric is a string, and {name!r} is a {type(name).__name__}.")
    return name


def _number(name: str, value: Any) -> float:
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, Tensor) or (hasattr(value, "item") and hasattr(value, "shape")):  # an array, of any library
        shape = tuple(value.shape)
        if any(size != 1 for size in shape):
            raise ArgumentValueError(
                f"The metric {name!r} has the shape {shape}: only single numbers can be logged. Reduce it first, by "
                ".mean() say."
            )
        if isinstance(value, Tensor) and value.is_meta:
            raise ArgumentValueError(f"The metric {name!r} is on the meta device: it has no value.")
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    other = hasattr(value, "__float__") and not isinstance(value, (str, numbers.Complex))  # a Decimal, say
    if isinstance(value, numbers.Real) or other:
        return float(value)
    hint = ""
    if isinstance(value, Mapping):
        hint = f" Log its entries by name: {name}/{next(iter(value), 'x')!s}."
    elif isinstance(value, complex):
        hint = " Log its real and imaginary part, or its absolute value."
    raise ArgumentTypeError(f"The metric {name!r} is a {type(value).__name__}, which is no number.{hint}")
