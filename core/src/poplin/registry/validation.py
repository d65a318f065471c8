"""What a plugin's hook implementations must be, beyond what pluggy itself checks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pluggy

from poplin.errors import PluginValidationError
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold, is_registrable

_OFFER_HOOKS = frozenset(kind.hook for kind in KINDS.values())


class Implementation(NamedTuple):
    """One function of a plugin that is marked as a hook implementation."""

    hook: str
    attribute: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    @property
    def signature(self) -> str:
        """``name(arguments)``, as it stands in the plugin."""
        return f"{self.attribute}{inspect.signature(self.function)}"


class Guest:
    """A plugin object that can't be compared or hashed by identity (a dataclass, for instance), by its hooks alone."""

    def __init__(self, implementations: list[Implementation]) -> None:
        for implementation in implementations:
            setattr(self, implementation.attribute, implementation.function)


def implementations(manager: pluggy.PluginManager, plugin: Any) -> list[Implementation]:
    """The hook implementations of a plugin, by pluggy's own reading."""
    found = []
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is not None:
            function = getattr(plugin, attribute)
            found.append(Implementation(options.get("specname") or attribute, attribute, function, options))
    return found


def check(name: str, plugin: Any, found: list[Implementation], ambient: bool) -> None:
    """Refuse what pluggy would accept, and what could not work.

    Args:
        name: of the plugin, for messages.
        plugin: the module or object.
        found: its implementations.
        ambient: whether it is an ambient plugin (or a script's own): these may wrap hooks.

    Raises:
        PluginValidationError: plugin, hook and signature are named.
    """
    if not found:
        raise PluginValidationError(
            f"The plugin {name!r} ({_short(plugin)}) implements no hook. Mark its functions with @hookimpl of poplin."
        )
    if inspect.isclass(plugin):
        raise PluginValidationError(
            f"The plugin {name!r} is the class {plugin.__qualname__}: offer an instance of it, or a module."
        )
    for implementation in found:
        _check_one(name, implementation, ambient)


def _check_one(name: str, implementation: Implementation, ambient: bool) -> None:
    function, options = implementation.function, implementation.options
    where = f"The plugin {name!r}, hook {implementation.hook!r}, implemented as {implementation.signature}"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginValidationError(f"{where}: it is `async`, and hooks are called plainly. Write `def`.")
    if options.get("hookwrapper"):
        raise PluginValidationError(f"{where}: hookwrapper=True is pluggy's old style. Write wrapper=True.")
    if options.get("wrapper"):
        if not ambient or implementation.hook in _OFFER_HOOKS:
            raise PluginValidationError(
                f"{where}: wrapper=True is for the selection hooks of ambient plugins (group poplin.ambient)."
            )
        if not inspect.isgeneratorfunction(function):
            raise PluginValidationError(f"{where}: wrapper=True, and the function has no `yield`.")
    elif inspect.isgeneratorfunction(function):
        raise PluginValidationError(
            f"{where}: it is a generator (it has a `yield`), so it answers nothing. Use return."
        )
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise PluginValidationError(f"{where}: pluggy passes no keyword-only arguments ({parameter.name!r}).")


def unknown_hook(
    name: str, found: list[Implementation], specified: list[str], error: Exception
) -> PluginValidationError:
    """The error for a plugin that pluggy refused; a hook that does not exist is named with the one that was meant."""
    for implementation in found:
        if implementation.hook not in specified and not implementation.options.get("optionalhook"):
            close = difflib.get_close_matches(implementation.hook, specified, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            return PluginValidationError(
                f"The plugin {name!r}, hook {implementation.hook!r}, implemented as {implementation.signature}: there "
                f"is no such hook.{meant} (Mark one that only a later poplin-core has: @hookimpl(optionalhook=True).)"
            )
    return PluginValidationError(f"The plugin {name!r} was refused: {'; '.join(str(error).splitlines())}")


def check_offers(name: str, hook: str, offers: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """What a hook of a kind returned, as folded name → (name, offer).

    Raises:
        PluginValidationError: it is no mapping of names to classes, functions or ``lazy(...)``.
    """
    where = f"The plugin {name!r}: its {hook}()"
    if not isinstance(offers, Mapping):
        raise PluginValidationError(
            f"{where} returned {_short(offers)}; return a dict of names to classes or lazy(...)."
        )
    roles = next(kind.roles for kind in KINDS.values() if kind.hook == hook)
    checked: dict[str, tuple[str, Callable[[], Any]]] = {}
    for offered, offer in offers.items():
        if not isinstance(offered, str) or not is_registrable(offered):
            raise PluginValidationError(
                f"{where} offers the name {offered!r}: a name has lower-case letters and digits, and '.', '_', '-' "
                "between them."
            )
        if fold(offered) in roles:
            raise PluginValidationError(
                f"{where} offers {offered!r}, which is a role: declare it in the metadata only, and list it in the "
                "`roles` of the class."
            )
        if fold(offered) in checked:
            raise PluginValidationError(f"{where} offers {offered!r} twice ({checked[fold(offered)][0]!r}).")
        if not callable(offer):
            raise PluginValidationError(
                f'{where} offers {offered!r} as {_short(offer)}: give a class, a function or lazy("module:Class").'
            )
        checked[fold(offered)] = (offered, offer)
    return checked


def check_against_metadata(name: str, declared: Mapping[str, list[str]], returned: Mapping[str, list[str]]) -> None:
    """Hold what the hooks return against what the metadata declares; both must have the same names, kind by kind.

    Raises:
        PluginValidationError: they differ; both lists are shown.
    """
    for kind in KINDS.values():
        in_metadata, in_hook = declared.get(kind.name, []), returned.get(kind.name, [])
        if {fold(one) for one in in_metadata} != {fold(one) for one in in_hook}:
            raise PluginValidationError(
                f'The plugin {name!r} and its metadata disagree: under "{kind.group}" the metadata declares '
                f"{sorted(in_metadata)}, and {kind.hook}() returned {sorted(in_hook)}. They must be the same names."
            )


def has_identity(plugin: Any) -> bool:
    """Whether a plugin can be held by pluggy as it is: it hashes, and equals itself alone."""
    kind: Any = type(plugin)
    return bool(kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 100 else text[:97] + "..."
