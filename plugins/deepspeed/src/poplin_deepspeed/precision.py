"""The precisions that DeepSpeed's engine serves. It keeps float32 copies of the weights, and scales losses itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from poplin.errors import ArgumentValueError
from poplin.precision import DefaultDtype, Precision
from poplin.utilities import apply_to_tensors

DTYPES = {
    "32-true": torch.float32,
    "16-mixed": torch.float16,
    "16-true": torch.float16,
    "bf16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
}


class DeepSpeedPrecision(Precision):
    """In which format the engine holds the weights that compute; the optimizer always steps float32 ones.

    With ``...-mixed`` the forward runs under torch's autocast and the float32 weights start as the module's own. With
    ``...-true`` the module is converted first, inputs are cast, and no autocast is on.

    Args:
        precision: ``"32-true"``, ``"16-mixed"``, ``"16-true"``, ``"bf16-mixed"`` or ``"bf16-true"``.

    Raises:
        ArgumentValueError: another name.
    """

    def __init__(self, precision: str = "32-true") -> None:
        if precision not in DTYPES:
            raise ArgumentValueError(f"DeepSpeedPrecision is one of {', '.join(DTYPES)}, and not {precision!r}.")
        self.precision = precision
        #: Of the weights that compute.
        self.dtype = DTYPES[precision]
        self.converts_module = precision in ("16-true", "bf16-true")
        self.converts_data = precision != "32-true"
        self.autocasts = precision.endswith("-mixed")

    @property
    def section(self) -> str | None:
        """The section of DeepSpeed's config that turns it on; None for float32."""
        return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(self.dtype)

    def convert_module(self, module: nn.Module) -> nn.Module:
        return module.to(self.dtype) if self.converts_module else module

    def forward_context(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype) if self.autocasts else nullcontext()

    def convert_input(self, data: Any) -> Any:
        return _cast(data, self.dtype) if self.converts_module else data

    def convert_output(self, data: Any) -> Any:
        return _cast(data, torch.float32) if self.converts_data else data

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype) if self.converts_module else nullcontext()

    def module_init_context(self) -> AbstractContextManager[Any]:
        return self.tensor_init_context()


def _cast(data: Any, dtype: torch.dtype) -> Any:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor

    if isinstance(data, Tensor):
        return cast(data)
    return apply_to_tensors(data, cast)
