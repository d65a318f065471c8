"""Casts of data and of modules, and the context that sets torch's default dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from poplin.utilities import apply_to_tensors

#: What ``to(dtype)`` does, without the time that it takes to find out what its arguments mean.
_CASTS = {
    torch.float16: Tensor.half,
    torch.bfloat16: Tensor.bfloat16,
    torch.float32: Tensor.float,
    torch.float64: Tensor.double,
}


def cast_floats(data: Any, dtype: torch.dtype) -> Any:
    """Every floating-point tensor in a nested collection in ``dtype``; integers, booleans and all else as they are."""
    if type(data) is Tensor:  # the usual argument of a forward: no walk
        return _CASTS[dtype](data) if data.dtype is not dtype and data.is_floating_point() else data
    return apply_to_tensors(data, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


class DefaultDtype:
    """Context in which torch's default dtype is another one. It may be entered again and again, nested too."""

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


def convert_module(module: nn.Module, dtype: torch.dtype, keep: Sequence[str | type[nn.Module]]) -> nn.Module:
    """Convert floating-point parameters and buffers in place, but for those that are to keep their dtype.

    Args:
        module: the module.
        dtype: the new dtype.
        keep: names of parameters, buffers or submodules (``*`` matches anything), or module classes.
    """
    kept = list(_kept(module, keep))
    values = [(owner, name, tensor, tensor.data) for owner, name, tensor in kept]
    module.to(dtype)
    for owner, name, tensor, value in values:
        if isinstance(tensor, nn.Parameter):
            tensor.data = value  # module.to() changed it in place, or replaced it
            owner._parameters[name] = tensor
        else:
            owner._buffers[name] = tensor
    return module


def _kept(module: nn.Module, keep: Sequence[str | type[nn.Module]]) -> Iterator[tuple[nn.Module, str, Tensor]]:
    if not keep:
        return
    types = tuple(item for item in keep if isinstance(item, type))
    patterns = [item for item in keep if isinstance(item, str)]
    whole: list[str] = []  # names of submodules that keep all they have
    for owner_name, owner in module.named_modules(remove_duplicate=False):
        inside = any(owner_name == name or owner_name.startswith(f"{name}.") for name in whole)
        if not inside and (isinstance(owner, types) or any(fnmatchcase(owner_name, pattern) for pattern in patterns)):
            whole.append(owner_name)
            inside = True
        for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            full = f"{owner_name}.{name}" if owner_name else name
            if tensor is not None and (inside or any(fnmatchcase(full, pattern) for pattern in patterns)):
                yield owner, name, tensor
