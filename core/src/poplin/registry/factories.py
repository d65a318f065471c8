"""Callback factories: functions of installed packages that make callbacks for every Fabric."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from poplin.errors import PluginValidationError
from poplin.registry.binaries import diagnosed
from poplin.registry.catalogue import Offer, rank
from poplin.registry.lazy import resolve
from poplin.registry.manager import PluginHost
from poplin.registry.records import CallbackFactory, Failure, Provider
from poplin.utilities.unwinding import let_through


def key_of(provider: Provider) -> str:
    """Under which key a factory is kept: the same module may also be a plugin."""
    return f"{provider.key} (callbacks factory)"


def load(host: PluginHost, offers: Sequence[Offer]) -> list[CallbackFactory]:
    """Import each factory, once in a process; one function that is declared several times is in the list once.

    Returns:
        By distribution and name. One that can't be had has its error in place of the function.
    """
    made: list[CallbackFactory] = []
    seen: set[int] = set()
    for offer in sorted(offers, key=lambda offer: (*rank(offer.provider)[:2], offer.folded, offer.provider)):
        provider = offer.provider
        outcome = host.once(key_of(provider), provider, lambda provider=provider: _load(provider))  # type: ignore[misc]
        mark = id(outcome)
        if mark in seen:
            continue
        seen.add(mark)
        if isinstance(outcome, Failure):
            made.append(CallbackFactory(offer.name, provider, None, outcome.error))
        else:
            made.append(CallbackFactory(offer.name, provider, outcome))
    return made


def _load(provider: Provider) -> Callable[[], Any] | Failure:
    stage = "import"
    try:
        function = resolve(provider.target)
        stage = "validation"
        if not callable(function):
            raise PluginValidationError(f"a callbacks factory is a function without arguments, and not {function!r}")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise PluginValidationError("a callbacks factory is called plainly, and this one is `async`")
    except BaseException as error:
        let_through(error)
        return diagnosed(Failure(provider, stage, error))
    return function  # type: ignore[no-any-return]
