"""What every part of the selection needs: sources compared, plugins asked with care, labels for the trace."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from poplin import registry
from poplin.errors import ArgumentTypeError, BrokenPluginError, PoplinError
from poplin.registry import Failure, Found
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold
from poplin.selection.request import Request, Source, agree, contradiction, describe
from poplin.selection.trace import PassedOver, provider_label
from poplin.utilities.unwinding import let_through

T = TypeVar("T")
E = TypeVar("E", bound=PoplinError)


def is_interactive() -> bool:
    """Whether this is a notebook, a Python prompt or ``python -i``: a script that can't be run again by workers."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


# --- sources


def choose(subject: str, sources: Iterable[Source | None], same: Callable[[Any, Any], bool] = agree) -> Source | None:
    """The one thing that all explicit sources ask for, or None if there is none; an object rather than its name.

    Raises:
        ContradictionError: two of them differ.
    """
    chosen: Source | None = None
    for source in sources:
        if source is None:
            continue
        if chosen is None:
            chosen = source
        elif not same(chosen.value, source.value):
            raise contradiction(subject, chosen, source)
        elif isinstance(chosen.value, str) and not isinstance(source.value, str):
            chosen = source
    return chosen


def because(request: Request, subject: str, source: Source | None, otherwise: str = "") -> str:
    """The reason for the trace: where it was asked for, and what was noted when it was read."""
    parts = [f"asked for: {source.origin}" if source is not None else otherwise]
    parts += [note for about, note in request.notes if about == subject]
    return "; ".join(part for part in parts if part)


# --- plugins


def guarded(who: str, question: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Ask a plugin's object. Whatever it raises, other than an error of ours, makes it a broken plugin.

    Raises:
        BrokenPluginError: with the plugin's own error as its cause.
    """
    try:
        return question(*args, **kwargs)
    except PoplinError:
        raise
    except BaseException as error:
        let_through(error)
        raise BrokenPluginError(
            f"{who} failed with {type(error).__name__}: {error}. That is a fault of the plugin: "
            "update it, or leave it out (POPLIN_DISABLE_PLUGINS)."
        ) from error


def blamed(error: E, story: str) -> E:
    """The same error, its message led by how it came to that."""
    told = type(error)(f"{story}, and that can't be had: {error}")
    told.__cause__ = error
    return told


def created(found: Found, interface: Callable[..., T]) -> T:
    """The live object behind an offer, made with its presets only. ``interface`` is for the type checker.

    The registry has checked that it is an object of the kind's interface.
    """
    return cast(T, found.create())


def instance_of(value: Any, interface: Callable[..., T], origin: str) -> T:
    """``value``, if it is an object of the class ``interface``.

    Raises:
        ArgumentTypeError: it is something else; a class in place of an object is told apart.
    """
    wanted = cast(type[Any], interface)
    if isinstance(value, wanted):
        return cast(T, value)
    if isinstance(value, type) and issubclass(value, wanted):
        raise ArgumentTypeError(f"{origin}: this is a class. Give an object: {value.__name__}().")
    raise ArgumentTypeError(
        f"{origin}: {describe(value)} is no name and no {wanted.__name__} of Poplin's "
        f"(its class is {type(value).__module__}.{type(value).__qualname__})."
    )


def interface_of(kind: str) -> type[Any]:
    """The interface (an abstract class) of a kind of extension."""
    module, _, attribute = KINDS[kind].interface.partition(":")
    interface: type[Any] = getattr(importlib.import_module(module), attribute)
    return interface


# --- labels


def label(provider: Any) -> str:
    """``distribution version``, or a word for what nobody distributes."""
    return provider_label(provider) or "this script"


def label_of(value: Any) -> str:
    """Whose class ``value`` is of: a distribution and version, or the module that defines it."""
    provider = registry.provider_of(value)
    return label(provider) if provider is not None else f"the class {type(value).__module__}.{type(value).__qualname__}"


def passed_over_failure(failure: Failure) -> PassedOver:
    """A plugin that could not be loaded, for the trace."""
    return PassedOver(label(failure.provider), f"installed, but broken ({first_line(failure.error)})")


def kept_out(kind: str, names: tuple[str, ...] = ()) -> str:
    """Installed plugins of a kind that a control keeps out (all, or of these names), with the reason; for errors."""
    rows = [row for row in registry.rows() if row.kind == kind and row.status == "blocked"]
    told = {f"{row.distribution} ({row.reason})" for row in rows if not names or fold(row.name) in map(fold, names)}
    return ", ".join(sorted(told))


def first_line(error: BaseException | str) -> str:
    """The first line of an error, with its class, short enough for a list."""
    text = str(error).strip().split("\n", 1)[0]
    return text if isinstance(error, (str, PoplinError)) else f"{type(error).__name__}: {text}"
