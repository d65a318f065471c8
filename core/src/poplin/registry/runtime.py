"""What a script registers by itself: names, and whole plugin objects."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.registry.lazy import Lazy
from poplin.registry.manager import Loaded
from poplin.registry.names import fold
from poplin.registry.records import RUNTIME, Provider


@dataclass(frozen=True)
class Registration:
    """One name that a script registered."""

    kind: str
    name: str
    offer: Callable[[], Any]
    provider: Provider
    description: str = ""
    #: Whether it is one of the offers of a registered plugin object, which travels as a whole.
    of_object: bool = False

    def is_same_as(self, other: Registration) -> bool:
        """Whether both come from the same definition (a notebook's cell that ran again, a module read twice)."""
        if self.of_object or other.of_object:
            return self.provider == other.provider
        mine, theirs = _parts(self.offer), _parts(other.offer)
        return mine[1:] == theirs[1:] and (mine[0] is theirs[0] or target_of(self.offer) == target_of(other.offer))


class Registrations:
    """All that the script registered, by kind and name."""

    def __init__(self) -> None:
        #: Another object after every change.
        self.version = object()
        self.names: dict[tuple[str, str], Registration] = {}
        self.objects: list[tuple[Any, Loaded]] = []

    def add(self, registration: Registration, override: bool) -> None:
        """Take in one name.

        Raises:
            ArgumentValueError: the script registered something else under it.
        """
        self.require_free(registration, override)
        self.names[registration.kind, fold(registration.name)] = registration
        self.version = object()

    def require_free(self, registration: Registration, override: bool) -> None:
        """Refuse a name that already stands for something else.

        Raises:
            ArgumentValueError: it does.
        """
        present = self.names.get((registration.kind, fold(registration.name)))
        if present is not None and not override and not present.is_same_as(registration):
            raise ArgumentValueError(
                f"{registration.kind}/{registration.name} is registered already, as {present.provider.target}. Take "
                f"that out first (poplin.registry.unregister({registration.kind!r}, {registration.name!r})), or choose "
                "another name."
            )

    def add_object(self, plugin: Any, loaded: Loaded) -> None:
        """Take in a plugin object with all its offers, or none of them.

        Raises:
            ArgumentValueError: the script registered something else under one of its names.
        """
        registrations = [
            Registration(kind, name, offer, loaded.provider, of_object=True)
            for kind, offers in loaded.offers.items()
            for name, offer in offers.values()
        ]
        for registration in registrations:
            self.require_free(registration, override=False)
        self.objects.append((plugin, loaded))
        for registration in registrations:
            self.add(registration, override=False)
        self.version = object()

    def loaded_of(self, plugin: Any) -> Loaded | None:
        """The record of a registered plugin object."""
        return next((loaded for present, loaded in self.objects if present is plugin), None)

    def loaded_by(self, provider: Provider) -> Loaded | None:
        """What stands for a provider of the script's own; None if nothing of it is registered any more."""
        for _, loaded in self.objects:
            if loaded.provider == provider:
                return loaded
        if any(one.provider == provider for one in self.names.values()):
            return Loaded(provider, None, (), {})
        return None

    def new_provider(self, plugin: Any) -> Provider:
        """A provider for a plugin object, unlike that of any other."""
        taken = {loaded.provider.target for _, loaded in self.objects}
        number = 1
        while (provider := provider_of_target(plugin, number)).target in taken:
            number += 1
        return provider

    def remove(self, kind: str, name: str) -> None:
        """Take out one name.

        Raises:
            ArgumentValueError: there is no such name, or it belongs to a plugin object.
        """
        present = self.names.get((kind, fold(name)))
        if present is None:
            raise ArgumentValueError(
                f"{kind}/{name} was not registered by this process. (To keep an installed plugin out, block it: "
                "POPLIN_DISABLE_PLUGINS.)"
            )
        if present.of_object:
            raise ArgumentValueError(
                f"{kind}/{name} is offered by the plugin {present.provider.target}: unregister that object as a whole."
            )
        del self.names[kind, fold(name)]
        self.version = object()

    def remove_object(self, plugin: Any) -> Loaded:
        """Take out a plugin object with all its offers.

        Raises:
            ArgumentValueError: it was not registered.
        """
        loaded = self.loaded_of(plugin)
        if loaded is None:
            raise ArgumentValueError(f"{target_of(plugin)} was not registered by this process.")
        self.objects = [(present, its) for present, its in self.objects if present is not plugin]
        self.names = {
            key: one for key, one in self.names.items() if not (one.of_object and one.provider == loaded.provider)
        }
        self.version = object()
        return loaded


def require_offer(offer: Any) -> Callable[[], Any]:
    """An offer from what was given: a class, a function, ``lazy(...)`` or ``"module:Class"``.

    Raises:
        ArgumentTypeError: it is something else.
        ArgumentValueError: a string that is no target.
    """
    if isinstance(offer, str):
        return Lazy(offer, {})
    if not callable(offer):
        raise ArgumentTypeError(f"{offer!r} can't be offered: give a class, a function or 'package.module:Class'.")
    return offer  # type: ignore[no-any-return]


def provider_of_target(target: Any, number: int = 1) -> Provider:
    """The provider that stands for a script's own class, function or plugin object."""
    module, text = target_of(target).partition(":")[0], target_of(target)
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
    return Provider(RUNTIME, "", text + (f"#{number}" if number > 1 else ""), file)


def target_of(offer: Any) -> str:
    """``module:qualname`` of what is offered, of the class of an object that has no name of its own."""
    if isinstance(offer, Lazy):
        offer = offer.target
    if isinstance(offer, str):
        return offer
    if isinstance(offer, ModuleType):
        return offer.__name__
    named = offer if hasattr(offer, "__qualname__") else type(offer)
    # multiprocessing imports the main module of its workers under a second name
    module = "__main__" if named.__module__ == "__mp_main__" else named.__module__
    return f"{module}:{named.__qualname__}"


def _parts(offer: Any) -> tuple[Any, dict[str, Any]]:
    return (offer.target, offer.presets) if isinstance(offer, Lazy) else (offer, {})
