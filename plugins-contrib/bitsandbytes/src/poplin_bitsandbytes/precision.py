"""The precisions ``nf4``, ``nf4-dq``, ``fp4``, ``fp4-dq``, ``int8`` and ``int8-training``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.precision import DefaultDtype, Precision, cast_floats
from poplin_bitsandbytes.layers import (
    MODES,
    LinearsAsMade,
    bitsandbytes,
    check_layer,
    is_quantised,
    make_layer,
    replace_linears,
)

if TYPE_CHECKING:
    from poplin.selection import Selection

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class BitsandbytesPrecision(Precision):
    """Linear layers by bitsandbytes, quantised when they move to the device.

    Quantised weights do not train; what stands beside them does (norms, embeddings, adapters, biases).
    ``int8-training`` keeps the weights in 16 bits and multiplies in 8: it trains.

    Args:
        mode: ``"nf4"``, ``"nf4-dq"``, ``"fp4"``, ``"fp4-dq"``, ``"int8"`` or ``"int8-training"``; ``-dq`` quantises
            the scales too.
        dtype: of everything that is not quantised, and of the computation. None is float16 for int8 on accelerators
            and bfloat16 otherwise.
        ignore_modules: names of modules whose linear layers are left as they are: ``"lm_head"``, ``"blocks.0.mlp"``.

    Raises:
        ArgumentValueError: an unknown mode, or a dtype in which bitsandbytes does not compute.
        MissingPackageError: bitsandbytes is not installed, or can't be imported.
    """

    device_types: ClassVar[tuple[str, ...] | None] = ("cpu", "cuda", "xpu", "hpu")
    converts_module = True
    converts_data = True

    def __init__(
        self, mode: str = "nf4", dtype: torch.dtype | None = None, ignore_modules: Iterable[str] | None = None
    ) -> None:
        if mode not in MODES:
            raise ArgumentValueError(f"mode={mode!r}: bitsandbytes is offered in the modes {', '.join(MODES)}.")
        if dtype is not None and dtype not in _DTYPES:
            raise ArgumentValueError(
                f"dtype={dtype}: bitsandbytes computes in torch.float16, torch.bfloat16 or torch.float32."
            )
        if isinstance(ignore_modules, str):
            raise ArgumentTypeError(f"ignore_modules is a set of names: give {{{ignore_modules!r}}}.")
        bitsandbytes()  # now, and not when the model is set up
        self.precision = mode
        self.mode = mode
        self.dtype = dtype or torch.bfloat16
        self._dtype_given = dtype is not None
        self.ignore_modules = frozenset(ignore_modules or ())

    def bind(self, selection: Selection) -> None:
        """Learn the device."""
        super().bind(selection)
        if not self._dtype_given and self.mode.startswith("int8") and self.device_type != "cpu":
            self.dtype = torch.float16

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Replace the linear layers, and cast the rest.

        A model that has layers of bitsandbytes already, made under ``fabric.init_module()`` or by its author, keeps
        them, and only the rest is cast.

        Raises:
            ArgumentValueError: it is a single linear layer; or a weight is tied to another module's.
            UsageError: it is on the meta device.
        """
        has_some = any(is_quantised(child) for child in module.modules())
        if not has_some:
            replace_linears(module, self._made, self.ignore_modules)
        for name, child in module.named_modules():
            if is_quantised(child):
                check_layer(name, child)
            else:
                _cast_own(child, self.dtype)
        return module

    def convert_input(self, data: Any) -> Any:
        return cast_floats(data, self.dtype)

    def convert_output(self, data: Any) -> Any:
        return cast_floats(data, torch.get_default_dtype())

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def forward_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def module_init_context(self) -> AbstractContextManager[Any]:
        """Linear layers are quantised as they are made, so that the whole never stands in memory.

        Not so for ``int8-training``, and where ``ignore_modules`` names some, since a layer that is being made does not
        know yet where it will stand: :meth:`convert_module` does it then.
        """
        stack = ExitStack()
        return _InitContext(stack, self)

    def _made(self, layer: nn.Linear) -> nn.Linear:
        return make_layer(self.mode, self.dtype, layer)


class _InitContext:
    """The default dtype, and layers replaced as they are made."""

    def __init__(self, stack: ExitStack, precision: BitsandbytesPrecision) -> None:
        self._stack, self._precision = stack, precision

    def __enter__(self) -> None:
        precision = self._precision
        self._stack.enter_context(DefaultDtype(precision.dtype))
        if precision.mode != "int8-training" and not precision.ignore_modules:
            self._stack.enter_context(LinearsAsMade(precision._made))

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)


def _cast_own(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast the parameters and buffers that are the module's own, in place."""
    for parameter in module._parameters.values():
        if parameter is not None and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to(dtype)
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_floating_point():
            module._buffers[name] = buffer.to(dtype)
