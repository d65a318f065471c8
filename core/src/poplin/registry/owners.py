"""Whose class an object is of."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from poplin.registry.catalogue import Catalogue
from poplin.registry.lazy import Lazy
from poplin.registry.manager import Loaded
from poplin.registry.records import CORE, Provider
from poplin.registry.runtime import Registration


class Owners:
    """Remembers the classes that came out of offers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._classes: weakref.WeakKeyDictionary[type[Any], Provider] = weakref.WeakKeyDictionary()

    def after_fork(self) -> None:
        """Nobody else holds the lock in a new process."""
        self._lock = threading.Lock()

    def note(self, cls: type[Any], provider: Provider) -> None:
        """``cls`` came out of an offer of ``provider``; the first one counts."""
        with self._lock:
            self._classes.setdefault(cls, provider)

    def of(
        self, thing: Any, current: Catalogue, loaded: Iterable[Loaded], own: Iterable[Registration]
    ) -> Provider | None:
        """The provider of a class, or of an object's class; None if it belongs to no plugin.

        It is one that offers this very class; else the one from whose offer it came; else an installed plugin that
        lives in the same package; else the same for its base classes.
        """
        cls = thing if inspect.isclass(thing) else type(thing)
        offered = _offered(loaded, own)
        for base in cls.__mro__:
            with self._lock:
                noted = self._classes.get(base)
            provider = offered.get(_path(base)) or noted or _same_package(base, current)
            if provider is not None:
                return provider
        return None


def _offered(loaded: Iterable[Loaded], own: Iterable[Registration]) -> dict[str, Provider]:
    offered: dict[str, Provider] = {}
    for plugin in loaded:
        for offers in plugin.offers.values():
            for _, offer in offers.values():
                offered.setdefault(_target(offer), plugin.provider)
    for registration in own:  # it may have registered an installed class under another name
        offered.setdefault(_target(registration.offer), registration.provider)
    return offered


def _target(offer: Any) -> str:
    target = offer.target if isinstance(offer, Lazy) else offer
    return target if isinstance(target, str) else _path(target)


def _path(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"


def _same_package(cls: type[Any], current: Catalogue) -> Provider | None:
    package = cls.__module__.partition(".")[0]
    if package in ("builtins", "abc", "typing", "torch"):
        return None
    for offer in current.offers:
        if offer.provider.distribution == CORE:
            continue
        if offer.provider.target.partition(":")[0].partition(".")[0] == package:
            return offer.provider
    return None
