"""What both precisions share: which layers are replaced, and the dtype of everything else."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.precision import DefaultDtype, Precision, cast_floats
from poplin.utilities import import_library

#: Both dimensions of a layer must be multiples of it: the units of hardware that multiply in 8 bits need it.
MULTIPLE = 16


class TorchaoPrecision(Precision):
    """Base of the precisions of this package: parameters in bfloat16, linear layers multiplied in 8 bits.

    Args:
        ignore_modules: names of modules whose linear layers keep their own arithmetic: ``"lm_head"``.
        dtype: of parameters, inputs and what a forward makes.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument that can't be meant.
        MissingPackageError: torchao is not installed, or can't be imported.
    """

    converts_module = True
    shardable = True  # the layers are other ones, with the same parameters
    converts_data = True

    def __init__(self, ignore_modules: Iterable[str] | None = None, dtype: torch.dtype = torch.bfloat16) -> None:
        if isinstance(ignore_modules, str):
            raise ArgumentTypeError(f"ignore_modules is a set of names: give {{{ignore_modules!r}}}.")
        if dtype not in (torch.bfloat16, torch.float32):
            raise ArgumentValueError(f"dtype={dtype}: torchao trains 8-bit layers in torch.bfloat16 or torch.float32.")
        self.dtype = dtype
        self.ignore_modules = frozenset(ignore_modules or ())

    def imported(self, module: str) -> Any:
        """A module of torchao."""
        return import_library(module, f"The precision {self.precision!r}")

    def takes(self, module: nn.Module, name: str) -> bool:
        """Whether a layer is to be replaced.

        Args:
            module: the layer.
            name: its full name in the model.
        """
        if type(module) is not nn.Linear or module.in_features % MULTIPLE or module.out_features % MULTIPLE:
            return False
        parts = name.split(".")
        prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        return not (self.ignore_modules & (prefixes | set(parts)))

    def prepared(self, module: nn.Module) -> nn.Module:
        """The module in :attr:`dtype`, if it has layers to replace.

        Raises:
            ArgumentValueError: it has none, so that nothing would be in 8 bits; or it is a single layer itself.
        """
        if type(module) is nn.Linear:
            raise ArgumentValueError(
                f"precision={self.precision!r} replaces layers of the module, and this is a single nn.Linear. Put it "
                "into a module: nn.Sequential(nn.Linear(...))."
            )
        linears = [(name, layer) for name, layer in module.named_modules() if type(layer) is nn.Linear]
        if linears and not any(self.takes(layer, name) for name, layer in linears):
            shapes = ", ".join(f"{name} ({layer.in_features} -> {layer.out_features})" for name, layer in linears[:5])
            raise ArgumentValueError(
                f"precision={self.precision!r} would change none of the model's linear layers: it takes those whose "
                f"dimensions are multiples of {MULTIPLE} and that ignore_modules does not name, and here are: "
                f"{shapes}. Use 'bf16-true', or other dimensions."
            )
        return module.to(self.dtype)

    def convert_input(self, data: Any) -> Any:
        return cast_floats(data, self.dtype)

    def convert_output(self, data: Any) -> Any:
        return cast_floats(data, torch.get_default_dtype())

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def module_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)

    def forward_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.dtype)
