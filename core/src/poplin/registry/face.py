"""The functions of ``poplin.registry``: a thin layer over the one registry of this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar, overload

from poplin.errors import ArgumentTypeError, ArgumentValueError, NameConflictError
from poplin.registry import lookup, travel
from poplin.registry.kinds import KINDS, get_kind
from poplin.registry.lazy import Lazy
from poplin.registry.manager import Loaded
from poplin.registry.names import fold, parse_reference, require_registrable
from poplin.registry.records import CORE, CallbackFactory, Failure, Found, Provider, Row
from poplin.registry.runtime import Registration, provider_of_target, require_offer
from poplin.registry.service import REGISTRY
from poplin.registry.travel import RuntimeTable

T = TypeVar("T")


# --- looking up


def find(kind: str, name: str) -> Found:
    """Look up ``[kind/][dist:]name`` and load the plugin that offers it, and no other.

    Args:
        kind: a kind of extension (``"strategies"`` or ``"strategy"``, and so on).
        name: the name; upper and lower case, and ``-``, ``_``, ``.``, are the same.

    Returns:
        The offer; its ``create()`` makes the object, its ``target_class()`` is the class behind it.

    Raises:
        UnknownNameError: nobody offers it; close matches are named.
        NotInstalledError: a known package does; the pip command is given.
        BrokenPluginError: the plugin that does is broken; its own error is the cause.
        IncompatiblePluginError: that plugin is for another version of the core.
        BlockedNameError: a control keeps it out.
        NameConflictError: several distributions offer it.
    """
    return REGISTRY.find(kind, name)


def locate(kind: str, name: str) -> Provider:
    """Who would offer ``name``. As :func:`find`, with the same errors, but nothing is imported."""
    return lookup.locate(REGISTRY.catalogue(), kind, name).provider


def names(kind: str) -> list[str]:
    """The names of a kind that can be asked for now, sorted; nothing is imported."""
    return REGISTRY.catalogue().names(get_kind(kind).name)


def kinds_offering(name: str) -> list[str]:
    """The kinds in which ``[kind/][dist:]name`` can be asked for now; nothing is imported."""
    reference = parse_reference(name)
    current = REGISTRY.catalogue()
    return [
        kind
        for kind in KINDS
        if reference.kind in (None, kind)
        and any(offer.is_usable for offer in current.named(kind, reference.name, reference.distribution))
    ]


def rows(load: bool = False) -> list[Row]:
    """Everything that is declared, one row for each name, sorted by kind, name and distribution.

    Args:
        load: import every plugin and what its offers stand for, to find out which of them fail.
    """
    return REGISTRY.rows(load)


def role_candidates(kind: str, role: str) -> list[Found | Failure]:
    """All that may take a role: the offers of the plugins that declared it, the built-ins, and the script's own.

    Only these plugins are loaded. One that can't be loaded is a Failure in the list.
    """
    return REGISTRY.role_candidates(get_kind(kind).name, role)


def undeclared_roles(found: Found) -> list[str]:
    """The roles that the class of an offer takes, and for which its plugin is never asked: no entry point says so."""
    return REGISTRY.undeclared_roles(found.kind, found.target_class(), found.provider)


def provider_of(thing: Any) -> Provider | None:
    """Whose class ``thing`` is, or is of; None if it belongs to no plugin."""
    return REGISTRY.owners.of(thing, REGISTRY.catalogue(), REGISTRY.host.loaded(), REGISTRY.own.names.values())


def ambient() -> None:
    """Load the ambient plugins, each once in a process.

    Raises:
        BrokenPluginError: one fails, and the controls are strict. (Otherwise it is a warning.)
    """
    REGISTRY.load_ambient()


def callback_factories() -> list[CallbackFactory]:
    """The callback factories of installed packages, each function once, by distribution and name."""
    return REGISTRY.callback_factories()


def failures() -> list[Failure]:
    """All that failed in this process, with stage, error and traceback."""
    return REGISTRY.failures()


def control_hits() -> dict[str, list[str]]:
    """What each word of the controls means here: ``VARIABLE=word`` → the names that it hits. None: no effect."""
    hits = REGISTRY.catalogue(warn_of_controls=False).hits()
    return {f"{word.variable}={word.text}": names for word, names in hits.items()}


def is_strict() -> bool:
    """Whether a plugin that fails is an error where it would be a warning (``POPLIN_STRICT_PLUGINS``)."""
    return REGISTRY.is_strict()


def refresh() -> None:
    """Look again at what is installed, and try again what failed. What the script registered stays."""
    REGISTRY.refresh()


# --- registering


@overload
def register(kind: str, name: str, target: T, *, description: str = ..., override: bool = ..., **presets: Any) -> T: ...
@overload
def register(
    kind: str, name: str, target: None = ..., *, description: str = ..., override: bool = ..., **presets: Any
) -> Callable[[T], T]: ...
@overload
def register(kind: T) -> T: ...
def register(
    kind: Any,
    name: str | None = None,
    target: Any = None,
    *,
    description: str = "",
    override: bool = False,
    **presets: Any,
) -> Any:
    """Register what a script offers: one name, or a plugin object with hook implementations.

    ::

        register("strategies", "mine", MyStrategy, overlap=True)
        register(my_plugin)                      # any object, or module, with @hookimpl functions

        @register("strategies", "other")
        class Other(Strategy): ...

    Args:
        kind: the kind of extension; or the plugin object, alone.
        name: the name to look it up by.
        target: a class, a function, ``lazy(...)`` or ``"module:Class"``; without it, this is a decorator.
        description: one line for listings.
        override: replace what the script registered under this name.
        **presets: keyword arguments that the target is called with.

    Returns:
        What was registered.

    Raises:
        NameConflictError: a built-in has this name; it can't be shadowed.
        ArgumentValueError: the name can't be registered, or stands for something else already.
        ArgumentTypeError: what is given can't be offered.
        PluginValidationError: the plugin object breaks the contract of the hooks.
    """
    if not isinstance(kind, str):
        if name is not None or target is not None or presets:
            raise ArgumentTypeError(
                "register(plugin) takes the plugin object alone, and register(kind, name, target) a kind, as a string."
            )
        _register_object(kind)
        return kind
    if name is None:
        raise ArgumentTypeError(f"register({kind!r}) lacks the name: register(kind, name, target).")
    if target is None:
        return lambda decorated: register(kind, name, decorated, description=description, override=override, **presets)
    _register_name(get_kind(kind).name, name, target, description, override, presets)
    return target


def unregister(kind: Any, name: str | None = None) -> None:
    """Take out what :func:`register` took in: ``unregister(kind, name)``, or ``unregister(plugin)``.

    Raises:
        ArgumentValueError: it was not registered by this process.
    """
    if isinstance(kind, str) and name is not None:
        REGISTRY.own.remove(get_kind(kind).name, name)
    else:
        REGISTRY.host.drop(REGISTRY.own.remove_object(kind).provider.key)


def _register_name(
    kind: str, name: str, target: Any, description: str, override: bool, presets: dict[str, Any]
) -> None:
    require_registrable(name)
    _require_no_role(kind, name)
    _require_not_built_in(kind, name)
    offer = require_offer(target)
    if presets:
        inner = offer.target if isinstance(offer, Lazy) else offer
        offer = Lazy(inner, {**(offer.presets if isinstance(offer, Lazy) else {}), **presets})
    registration = Registration(kind, name, offer, provider_of_target(offer), description)
    REGISTRY.own.add(registration, override)


def _register_object(plugin: Any) -> None:
    if REGISTRY.own.loaded_of(plugin) is not None:
        return
    provider = REGISTRY.own.new_provider(plugin)
    host = REGISTRY.host
    held, found = host.register(provider.key, plugin, ambient=True)
    try:
        loaded = Loaded(provider, held, tuple(found), host.read_offers(provider.key, held))
        for kind, offers in loaded.offers.items():
            for offered, _ in offers.values():
                _require_not_built_in(kind, offered)
        REGISTRY.own.add_object(plugin, loaded)
    except BaseException:
        host.drop(provider.key)
        raise
    host.adopt(loaded)


def _require_no_role(kind: str, name: str) -> None:
    if fold(name) in KINDS[kind].roles:
        raise ArgumentValueError(f"{name!r} is a role of {kind} and can't be registered as a name.")


def _require_not_built_in(kind: str, name: str) -> None:
    for offer in REGISTRY.catalogue(warn_of_controls=False).named(kind, name):
        if offer.provider.distribution == CORE:
            raise NameConflictError(
                f"{kind}/{offer.name} is built into {CORE} and can't be replaced. Register yours under another name."
            )


# --- travelling to workers


def runtime_table(dumps: Callable[[Any], bytes] = pickle.dumps) -> RuntimeTable:
    """What this process registered, as something that can be pickled, for a launcher to hand to its workers.

    Args:
        dumps: pickles one registration. A launcher whose workers do not import the script gives one that pickles by
            value; plain ``pickle`` must be able to read what it returns.

    Raises:
        LaunchError: a registration can't be pickled; it is named.
    """
    own = REGISTRY.own
    return travel.pack([one for one in own.names.values() if not one.of_object], own.objects, dumps)


def install_runtime_table(table: RuntimeTable) -> None:
    """Repeat in this process what :func:`runtime_table` packed in another. What is here already stays.

    Raises:
        LaunchError: a registration can't be had in this process; it is named.
    """

    def register_name(kind: str, name: str, offer: Any, description: str) -> None:
        _register_name(kind, name, offer, description, True, {})

    present = [loaded.provider.target for _, loaded in REGISTRY.own.objects]
    travel.unpack(table, present, register_name, _register_object)
