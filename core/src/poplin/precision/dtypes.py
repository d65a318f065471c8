"""Casts of data, and the context that sets torch's default dtype: what a precision is usually made of."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from poplin.utilities.apply_func import apply_to_tensors

#: What ``to(dtype)`` does, without the time that it takes to find out what its arguments mean.
_CASTS = {
    torch.float16: Tensor.half,
    torch.bfloat16: Tensor.bfloat16,
    torch.float32: Tensor.float,
    torch.float64: Tensor.double,
}


def cast_floats(data: Any, dtype: torch.dtype) -> Any:
    """Every floating-point tensor in a nested collection in ``dtype``; integers, booleans and all else as they are.

    Args:
        data: a tensor, or a nested collection, of any shapes.
        dtype: a floating-point one.
    """
    if type(data) is Tensor:  # the usual argument of a forward: no walk
        if data.dtype is dtype or not data.is_floating_point():
            return data
        cast = _CASTS.get(dtype)
        return data.to(dtype) if cast is None else cast(data)
    return apply_to_tensors(data, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


class DefaultDtype:
    """Context in which torch's default dtype is another one. It may be entered again and again, nested too.

    Args:
        dtype: a floating-point one.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._before: list[torch.dtype] = []

    def __enter__(self) -> None:
        self._before.append(torch.get_default_dtype())
        torch.set_default_dtype(self.dtype)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        torch.set_default_dtype(self._before.pop())
