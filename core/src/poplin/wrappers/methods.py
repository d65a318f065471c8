"""The methods that a made module class has: they run the user's, through precision and strategy or under watch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from poplin.wrappers.passage import running
from poplin.wrappers.sharing import looking_like
from poplin.wrappers.watching import WatchForBypass, WatchForPrecision

if TYPE_CHECKING:
    from poplin.wrappers.module import ModuleLink


def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``__call__`` where precision or strategy has a part in a forward."""
    link = self._poplin_link
    return link.run(link.forward_module, args, kwargs)


def call_tracked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``__call__`` where it must be known that the strategy's forward is running."""
    link = self._poplin_link
    if torch.compiler.is_compiling():
        return link.run(link.forward_module, args, kwargs)
    return _tracked(link, link.forward_module, link.original, args, kwargs)


def call_compiled(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``__call__`` where the user's own ``torch.compile`` goes around all of it."""
    return self._poplin_link.compiled(*args, **kwargs)


def on_compiled(name: str) -> Callable[..., Any]:
    """The method ``name`` of the compiled module.

    A hook on the module inside would be compiled as well, and the compiler doesn't notice one that comes later.
    """

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._poplin_link.compiled, name)(*args, **kwargs)

    return looking_like(getattr(nn.Module, name), method, name)


def on_inside(name: str, function: Any) -> Callable[..., Any]:
    """The method ``name`` of what was compiled: it runs at the precision and by the strategy, uncompiled."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        link: ModuleLink = self._poplin_link
        result = getattr(link.inside, name)(*args, **kwargs)
        return self if result is link.inside or result is link.original else result

    return looking_like(function, method, name)


def cautioned_method(name: str, function: Any) -> Callable[..., Any]:
    """The method ``name``, with a warning if its first call runs a part of the module outside of the autocast."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        link: ModuleLink = self._poplin_link
        run = function.__get__(self, type(self))
        if name in link.looked_at or torch.compiler.is_compiling():
            return run(*args, **kwargs)
        link.looked_at.add(name)
        with WatchForPrecision(link.original, name, link.precision.precision):
            return run(*args, **kwargs)

    return looking_like(function, method, name)


def _tracked(link: ModuleLink, through: Any, directly: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``through``, and know meanwhile that the strategy's forward is running.

    A model that calls its own wrapper from inside is in that forward already, and goes on ``directly``.
    """
    stack, key = running.stack, id(link.original)
    if key in stack:
        return link.run(directly, args, kwargs)
    stack.append(key)
    try:
        return link.run(through, args, kwargs)
    finally:
        stack.pop()


def another(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what ``function`` does, to get a name and a signature of its own."""

    def forward(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return forward


def marked_method(name: str, function: Any, guarded: bool) -> Callable[..., Any]:
    """The method ``name``, run as a forward is."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        link: ModuleLink = self._poplin_link
        if link.strategy is None:
            through = getattr(link.forward_module, name)
        else:
            through = link.strategy.forward_method(link.forward_module, name)
        if not guarded or torch.compiler.is_compiling():
            result = link.run(through, args, kwargs)
        else:
            result = _tracked(link, through, getattr(link.original, name), args, kwargs)
        return self if result is link.original else result

    return looking_like(function, method, name)


def watched_method(name: str, function: Any) -> Callable[..., Any]:
    """The method ``name``, run on the user's object, with an error if it goes past the strategy."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        original = self._poplin_link.original
        if running.stack or torch.compiler.is_compiling():
            result = getattr(original, name)(*args, **kwargs)
        else:
            with WatchForBypass(original, name):
                result = getattr(original, name)(*args, **kwargs)
            if isinstance(result, GeneratorType):  # its body has yet to run
                return _watched_steps(original, name, result)
        return self if result is original else result

    return looking_like(function, method, name)


def _watched_steps(original: nn.Module, name: str, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    sent: Any = None
    while True:
        with WatchForBypass(original, name):
            try:
                item = steps.send(sent)
            except StopIteration as stop:
                return stop.value
        sent = yield item
