"""The context in which modules are made on the meta device, and what is done to them is written down."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from poplin.errors import UsageError
from poplin_fsdp.tape import Tape

#: Functions that make a tensor of values: under a device context these would be lost.
_OF_VALUES = (torch.tensor, torch.as_tensor, torch.asarray)
_IS_META: Any = Tensor.is_meta.__get__  # type: ignore[attr-defined]
#: Methods by which a constructor looks at values.
_LOOKS: dict[Any, str] = {
    getattr(Tensor, name): name
    for name in ("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__")
}


class Recording:
    """Context in which new tensors are on the meta device, and what happens to them goes onto ``tape``.

    Args:
        tape: where to.
        device: on which it will be done for real.
        empty: whether what fills weights (``torch.nn.init``) is left out: they are going to be loaded.
        making: whether new tensors go to the meta device; if not, only what happens to those there is recorded.
    """

    def __init__(self, tape: Tape, device: torch.device, empty: bool = False, making: bool = True) -> None:
        self._tape, self._device, self._empty, self._making = tape, device, empty, making

    def __enter__(self) -> Tape:
        self._stack = ExitStack()
        if self._making:
            self._stack.enter_context(torch.device("meta"))
        self._stack.enter_context(_Functions(self._tape, self._empty, self._making))
        self._stack.enter_context(_Operations(self._tape, self._device.type == "cpu" and self._making))
        return self._tape

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if isinstance(error, Exception) and "meta tensor" in str(error):
            error.add_note(
                "Under fabric.init_module() a module is made on the meta device, where tensors have no values. If it "
                "needs them, pass init_module(empty_init=False)."
            )


class _Operations(TorchDispatchMode):
    """Records torch's operations."""

    def __init__(self, tape: Tape, one_generator: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape, self._one_generator = tape, one_generator

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kept = self._tape.kept(args, kwargs)  # as it is before: it may change their form
        result = func(*args, **kwargs)
        if _is_deferred(args, kwargs, result):
            self._tape.record(func, kept, result)
        elif self._one_generator and torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            raise UsageError(
                f"The module draws random numbers on the CPU while it is made ({func}), and under fabric.init_module() "
                "those of its other tensors are drawn when it is set up: the values would not be those of one process. "
                "Leave out device='cpu' there, or pass init_module(empty_init=False)."
            )
        return result


def _has_tensors(*values: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_flatten(values)[0])


def _is_deferred(*values: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_flatten(values)[0])


class _Functions(TorchFunctionMode):
    """Sees to what torch does without an operation on the meta device."""

    def __init__(self, tape: Tape, empty: bool, making: bool) -> None:
        super().__init__()
        self._tape, self._empty, self._making = tape, empty, making

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _IS_META:
            is_meta = func(*args)
            if is_meta:
                self._note_left_out(sys._getframe(1))
            return is_meta
        if self._empty and getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if self._making and func in _OF_VALUES and kwargs.get("device") is None and not _has_tensors(args, kwargs):
            requires_grad = kwargs.pop("requires_grad", False)
            return func(*args, **{**kwargs, "device": "cpu"}).to("meta").requires_grad_(requires_grad)
        if func in _LOOKS and args and isinstance(args[0], Tensor) and self._tape.knows(args[0]):
            return func(self._tape.value(self._tape.view(args[0])), *args[1:], **kwargs)
        return func(*args, **kwargs)

    def _note_left_out(self, frame: FrameType) -> None:
        """Record a function of torch.nn.init that asks whether its tensor is on the meta device, to do nothing then."""
        if frame.f_code.co_filename != nn.init.__file__ or self._empty:
            return
        function: Callable[..., Any] | None = getattr(nn.init, frame.f_code.co_name, None)
        if function is None:
            return
        names = inspect.signature(function).parameters
        given = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        self._tape.record(function, self._tape.kept((), given))
