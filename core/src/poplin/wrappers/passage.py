"""The way of a forward: through precision and strategy, with a guard against what would go past them.

Which parts there are is decided once, when a module is set up: a trait that is False costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from poplin.errors import UsageError
from poplin.precision.precision import Precision
from poplin.utilities.apply_func import apply_to_tensors

#: run(function, args, kwargs)
Run = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]


class _Running(threading.local):
    """Ids of the user's modules whose strategy's forward is running in this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[int] = []


running = _Running()


class BackwardGuard:
    """Notices a plain ``loss.backward()`` where ``Fabric.backward`` has a part in it.

    A hook on what a forward returns fires when a backward pass comes through. What runs inside ``Fabric.backward`` is
    no thread's own: on some devices hooks run on autograd's threads.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        #: One entry for each ``Fabric.backward`` that runs. (Appending and popping are atomic.)
        self.inside: list[None] = []

    def watch(self, output: Any) -> None:
        """Hook every tensor in ``output`` that a backward pass can come through."""
        if isinstance(output, Tensor):
            self._watch(output)
        else:
            apply_to_tensors(output, self._watch)

    def _watch(self, tensor: Tensor) -> Tensor:
        if tensor.grad_fn is not None:  # a hook on a leaf would stay there for ever
            tensor.register_hook(self._check)
        return tensor

    def _check(self, gradient: Tensor) -> None:
        # torch.autograd.grad, as for a gradient penalty, accumulates nothing and is the caller's own business
        if not self.inside and _accumulates():
            raise UsageError(
                f"loss.backward() was called, and {self.reason}: call fabric.backward(loss) instead of loss.backward()."
            )


def _accumulates() -> bool:
    """Whether the running backward pass adds to ``.grad`` (in contrast to ``torch.autograd.grad``)."""
    seen: set[Any] = set()
    pending: list[Any] = [torch._C._current_autograd_node()]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # the node that accumulates into a leaf
            try:
                if torch._C._will_engine_execute_node(node):
                    return True
            except RuntimeError:  # torch's answer while autograd.grad is running
                return False
        pending += [following for following, _ in node.next_functions]
    return False


def runs_in_context(precision: Precision) -> bool:
    """Whether a forward runs in the precision's context: an autocast, or one of its own."""
    return precision.autocasts or type(precision).forward_context is not Precision.forward_context


def build_run(precision: Precision, guard: BackwardGuard | None) -> Run:
    """The function that a forward or a marked method goes through."""
    context = precision.forward_context if runs_in_context(precision) else None
    converts = precision.converts_data
    if context is None and not converts and guard is None:
        return _directly

    def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if converts:
            convert = precision.convert_input
            args = tuple([convert(value) for value in args])
            if kwargs:
                kwargs = {name: convert(value) for name, value in kwargs.items()}
        if context is None:
            output = function(*args, **kwargs)
        else:
            with context():
                output = function(*args, **kwargs)
        if converts:
            output = precision.convert_output(output)
        if guard is not None and not torch.compiler.is_compiling():  # a compiled module is watched from outside
            guard.watch(output)
        return output

    return run


def _directly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return function(*args, **kwargs)
