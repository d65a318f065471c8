"""Number formats under torch_xla."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from poplin.errors import ArgumentValueError
from poplin.precision import DefaultDtype, Precision, cast_floats

_DTYPES = {"32-true": torch.float32, "bf16-true": torch.bfloat16, "16-true": torch.float16}


class XLAPrecision(Precision):
    """``32-true``, or everything in half precision: parameters, buffers of floats, and inputs.

    Outputs come back in float32, for the loss. (torch_xla's variables XLA_USE_BF16 and XLA_USE_F16, which did this
    behind
    torch's back, are gone from its last versions.)

    Args:
        precision: ``"32-true"``, ``"bf16-true"`` or ``"16-true"``.

    Raises:
        ArgumentValueError: another name.
    """

    def __init__(self, precision: str = "32-true") -> None:
        if precision not in _DTYPES:
            raise ArgumentValueError(f"XLAPrecision is {', '.join(_DTYPES)}, and {precision!r} was asked for.")
        self.precision = precision
        self.dtype = _DTYPES[precision]
        self.converts_module = self.converts_data = self.dtype != torch.float32

    def convert_module(self, module: nn.Module) -> nn.Module:
        return module.to(self.dtype)

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def module_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def convert_input(self, data: Any) -> Any:
        return cast_floats(data, self.dtype)

    def convert_output(self, data: Any) -> Any:
        return cast_floats(data, torch.float32)
