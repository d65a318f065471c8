"""Precisions in which the parameters themselves have another dtype: ``16-true``, ``bf16-true``, ``64-true``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from poplin.errors import ArgumentTypeError
from poplin.precision import DefaultDtype, Precision, cast_floats
from poplin_precision.dtypes import convert_module

Keep = str | type[nn.Module]


class TruePrecision(Precision):
    """Parameters, buffers, inputs and what a forward makes are of one dtype.

    Args:
        precision: the canonical name.
        dtype: the dtype.
        keep_fp32: parameters, buffers and submodules that keep the dtype they have: names (``"norm.weight"``,
            ``"layers.*.norm"``) or module classes (``nn.LayerNorm``).

    Raises:
        ArgumentTypeError: ``keep_fp32`` holds neither.
    """

    converts_module = True
    converts_data = True

    def __init__(self, precision: str, dtype: torch.dtype, keep_fp32: Keep | Sequence[Keep] = ()) -> None:
        self.precision = precision
        self.dtype = dtype
        keep = [keep_fp32] if isinstance(keep_fp32, (str, type)) else list(keep_fp32)
        for item in keep:
            if not isinstance(item, str) and not (isinstance(item, type) and issubclass(item, nn.Module)):
                raise ArgumentTypeError(f"keep_fp32 takes names and module classes, and got {item!r}.")
        self.keep_fp32: tuple[Keep, ...] = tuple(keep)

    def convert_module(self, module: nn.Module) -> nn.Module:
        return convert_module(module, self.dtype, self.keep_fp32)

    def convert_input(self, data: Any) -> Any:
        return cast_floats(data, self.dtype)

    def forward_context(self) -> AbstractContextManager[Any]:
        """Tensors that a forward makes have the dtype too."""
        return DefaultDtype(self.dtype)

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def module_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)
