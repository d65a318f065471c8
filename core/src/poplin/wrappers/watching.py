"""What an unmarked method of a set-up module does while it runs: it may go past the strategy, or the precision."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from poplin.errors import PossibleUserWarning, UsageError
from poplin.rank_zero import rank_zero_warn
from poplin.wrappers.compile import is_compiled
from poplin.wrappers.passage import running


class WatchForBypass:
    """While it lasts, a forward of ``original`` or of a part of it outside any strategy's forward is an error.

    Args:
        original: the user's module.
        method: the name of the method that runs.
    """

    def __init__(self, original: nn.Module, method: str) -> None:
        self.original = original
        self.method = method
        self.parts: set[int] | None = None
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        self.handle = register_module_forward_pre_hook(self._before_forward)

    def __exit__(self, *exception: object) -> None:
        self.handle.remove()

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if running.stack or threading.get_ident() != self.thread:
            return
        if self.parts is None:
            self.parts = {id(part) for part in self.original.modules()}
        if id(module) in self.parts:
            name = type(self.original).__name__
            part = "the model" if module is self.original else "a part of the model"
            raise UsageError(
                f"You are calling the method `{name}.{self.method}()` from outside the model, and it runs {part} past "
                f"the strategy's forward, which does more than that. Call `model.mark_forward_method({self.method!r})` "
                "once, on what setup() returned: then the method goes the way of forward()."
            )


class WatchForPrecision:
    """While it lasts, a forward of a part of ``original`` outside of every autocast is warned about, once.

    Args:
        original: the user's module. A forward of itself comes through its wrapper, and so through the precision.
        method: the name of the method that runs.
        precision: the name of the precision.
    """

    def __init__(self, original: nn.Module, method: str, precision: str) -> None:
        self.original = original
        self.method = method
        self.precision = precision
        self.parts = {id(part): part for part in original.modules()}
        self.thread = threading.get_ident()
        self.handle: Any = None

    def __enter__(self) -> None:
        # a hook would be compiled into a compiled part
        if not any(is_compiled(part) or part._compiled_call_impl is not None for part in self.parts.values()):
            self.handle = register_module_forward_pre_hook(self._before_forward)

    def __exit__(self, *exception: object) -> None:
        if self.handle is not None:
            self.handle.remove()

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if id(module) not in self.parts or threading.get_ident() != self.thread:
            return
        self.handle.remove()
        if module is self.original or torch.is_autocast_enabled(_device_type(module, args)):
            return
        name = type(self.original).__name__
        rank_zero_warn(
            f"The method `{name}.{self.method}()` runs a part of the model ({type(module).__name__}) outside of the "
            f"autocast of the precision {self.precision!r}: it computes in the precision of its parameters and inputs. "
            f"Call `model.mark_forward_method({self.method!r})` once, on what setup() returned, so that the method "
            "runs as forward() does, or call it in `with fabric.autocast():`.",
            category=PossibleUserWarning,
        )


def _device_type(module: nn.Module, args: tuple[Any, ...]) -> str:
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    first = next(iter(module.parameters()), tensors[0] if tensors else None)
    return "cpu" if first is None else first.device.type
