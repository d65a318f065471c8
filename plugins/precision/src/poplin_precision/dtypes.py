"""Modules whose floating-point values change their dtype, but for some that keep it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn


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
