"""Callbacks: any object with methods; a hook is a method's name.

``call`` runs the method of that name on every callback that has it. Signatures are inspected once, so that three
callbacks with three signatures are served by one call, and a hook that nobody has costs nothing.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from poplin.errors import BrokenPluginError
from poplin.rank_zero import rank_zero_warn
from poplin.utilities.typos import is_typo_of_hook
from poplin.utilities.unwinding import let_through

#: What stands for "takes every keyword argument".
_ALL_KEYWORDS = None


def as_list(callbacks: Any) -> list[Any]:
    """One object, or a list, tuple, set or iterator of them, as a new list; anything else is one callback."""
    if callbacks is None:
        return []
    if isinstance(callbacks, (list, tuple, set, frozenset, Iterator)):
        return list(callbacks)
    return [callbacks]


class Callbacks:
    """The callbacks of one Fabric: the user's, then the factories', then modules that became one.

    Args:
        callbacks: in the order in which they are called. The user's own list is never changed.
        fire: runs a hook on all of them; Fabric's ``call``, so that a subclass that overrides it sees every hook.
    """

    def __init__(self, callbacks: Iterable[Any], fire: Callable[..., None] | None = None) -> None:
        self._callbacks = list(callbacks)
        self._fire = fire if fire is not None else self.call
        self._live: dict[str, list[Callable[..., Any]]] = {}
        self._accepted: dict[Any, frozenset[str] | None] = {}
        self._checked_names: set[str] = set()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, callback: Any) -> None:
        """Add a callback, once, at the end; it counts at once."""
        if any(callback is present for present in self._callbacks):
            return
        self._callbacks.append(callback)
        self._checked_names.clear()
        for name, handlers in self._live.items():
            if not handlers and callable(getattr(callback, name, None)):
                handlers.append(self._handler(name))

    def live(self, name: str) -> list[Callable[..., Any]]:
        """Functions to call, with keyword arguments, when the hook ``name`` happens; empty while nobody has it.

        The list is the same object for ever and changes as callbacks come, so whoever fires a hook on the per-step
        path looks it up once and pays for a truth test.
        """
        handlers = self._live.get(name)
        if handlers is None:
            handlers = self._live[name] = []
            if any(callable(getattr(callback, name, None)) for callback in self._callbacks):
                handlers.append(self._handler(name))
        return handlers

    def call(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Run the method ``name`` of every callback that has it, with the keyword arguments that it accepts."""
        heard = False
        for callback in tuple(self._callbacks):
            method = getattr(callback, name, None)
            if method is None:
                continue
            heard = True
            if not callable(method):
                rank_zero_warn(f"{type(callback).__name__}.{name} is not callable, so the hook {name!r} skips it.")
                continue
            if kwargs and (accepted := self._accepted_keywords(method)) is not _ALL_KEYWORDS:
                method(*args, **{key: value for key, value in kwargs.items() if key in accepted})
            else:
                method(*args, **kwargs)
        if not heard and name not in self._checked_names:
            self._warn_about_typo(name)

    def tell(self, name: str, **kwargs: Any) -> list[tuple[Any, Exception]]:
        """Run the method ``name`` of each callback, whatever the others do: for the end of a run.

        Returns:
            The callbacks that failed, and with what.
        """
        failed: list[tuple[Any, Exception]] = []
        for callback in tuple(self._callbacks):
            method = getattr(callback, name, None)
            if not callable(method):
                continue
            accepted = self._accepted_keywords(method)
            try:
                method(**{key: value for key, value in kwargs.items() if accepted is None or key in accepted})
            except Exception as failure:
                failed.append((callback, failure))
        return failed

    def _handler(self, name: str) -> Callable[..., Any]:
        def fire(**kwargs: Any) -> None:
            self._fire(name, **kwargs)

        return fire

    def _accepted_keywords(self, method: Callable[..., Any]) -> frozenset[str] | None:
        key = getattr(method, "__func__", method)
        try:
            return self._accepted[key]
        except (KeyError, TypeError):
            accepted = accepted_keywords(method)
        try:
            self._accepted[key] = accepted
        except TypeError:
            pass  # a callable without a hash is inspected each time
        return accepted

    def _warn_about_typo(self, name: str) -> None:
        self._checked_names.add(name)
        for callback in self._callbacks:
            for known in _hook_names(callback):
                if is_typo_of_hook(name, known):
                    rank_zero_warn(
                        f"No callback has a method {name!r}; {type(callback).__name__} has {known!r}. "
                        f"If that is what call({name!r}) meant, correct the name."
                    )
                    return

    def __getstate__(self) -> dict[str, Any]:
        return {"callbacks": self._callbacks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Callbacks.__init__(self, state["callbacks"])

    def fire_through(self, fire: Callable[..., None]) -> None:
        """Fire hooks through ``fire`` from now on (needed once after unpickling)."""
        self._fire = fire


def accepted_keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """The keyword arguments that ``function`` takes, or None for all of them.

    All, too, where the signature can't be read. A parameter that is positional-only never takes a keyword.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return _ALL_KEYWORDS
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return _ALL_KEYWORDS
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in by_keyword)


def _hook_names(callback: Any) -> list[str]:
    """Public method names; read from the class, so that no property of the user's is evaluated."""
    names = {*dir(type(callback)), *getattr(callback, "__dict__", {})}
    return sorted(name for name in names if not name.startswith("_"))


def discovered_callbacks(user: list[Any]) -> tuple[list[Any], list[tuple[str, str]]]:
    """What the installed callback factories return.

    A factory that fails is warned about once, by distribution, and left out; strict mode raises.

    Returns:
        The callbacks, in the order of discovery, and ``(distribution, what it gave)`` for the trace.
    """
    from poplin.registry import callback_factories, is_strict

    found: list[Any] = []
    notes: list[tuple[str, str]] = []
    for factory in callback_factories():
        error = factory.error
        if error is None and factory.function is not None:
            try:
                made = as_list(factory.function())
            except BaseException as failure:
                let_through(failure)
                error = failure
            else:
                found += [callback for callback in made if not any(callback is given for given in user)]
                notes.append((factory.provider.distribution, f"{factory.name}: {len(made)} callback(s)"))
        if error is not None:
            message = (
                f"The callbacks factory {factory.name!r} of {factory.provider.distribution!r} failed and is left out: "
                f"{type(error).__name__}: {error}. Update or uninstall {factory.provider.distribution!r}, or block it: "
                f"POPLIN_DISABLE_PLUGINS={factory.provider.distribution}"
            )
            if is_strict():
                raise BrokenPluginError(message) from error
            warnings.warn(message, stacklevel=3)
            notes.append((factory.provider.distribution, f"{factory.name}: failed ({type(error).__name__}: {error})"))
    return found, notes
