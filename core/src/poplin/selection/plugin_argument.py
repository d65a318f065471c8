"""The argument ``plugins=``: objects and registered names, sorted by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poplin import registry
from poplin.errors import ArgumentTypeError, ArgumentValueError, ContradictionError, LookupFailedError, UnknownNameError
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold, parse_reference
from poplin.selection.common import interface_of
from poplin.selection.request import LEGACY_PRECISIONS, Request, Source, describe

#: The kinds that can stand in ``plugins=``.
PLUGIN_KINDS = ("precisions", "environments", "checkpoint_ios", "launchers")
#: Where the others go.
_OTHER_ARGUMENTS = {"accelerators": "accelerator=", "strategies": "strategy=", "loggers": "loggers="}


def sort_plugins(request: Request) -> Mapping[str, Source]:
    """``plugins=`` by kind. A name stays a name, with its kind known.

    Raises:
        ArgumentTypeError: something in it is of no kind that can stand there.
        ArgumentValueError: a name that fits several kinds; the longer forms are shown.
        ContradictionError: two of one kind.
        LookupFailedError: a name that can't be resolved.
    """
    sorted_plugins: dict[str, Source] = {}
    for plugin in request.plugins:
        kind = _kind_of_name(plugin) if isinstance(plugin, str) else _kind_of_object(plugin)
        source = Source(plugin, f"plugins={describe(plugin)}")
        other = sorted_plugins.get(kind)
        if other is not None and not _is_same(other.value, plugin):
            raise ContradictionError(
                f"plugins= holds two of one kind ({KINDS[kind].singular}): {describe(other.value)} and "
                f"{describe(plugin)}. At most one of each kind can be used: leave one of them out."
            )
        sorted_plugins[kind] = source
    return sorted_plugins


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):  # of one kind, so with or without it
        names = [
            (fold(reference.distribution or ""), fold(reference.name))
            for reference in map(parse_reference, (one, other))
        ]
        return names[0] == names[1]
    return one is other


def _kind_of_object(plugin: Any) -> str:
    fitting = [kind for kind in PLUGIN_KINDS if isinstance(plugin, interface_of(kind))]
    if len(fitting) == 1:
        return fitting[0]
    allowed = "a Precision, a ClusterEnvironment, a CheckpointIO or a Launcher, as an object or by its registered name"
    if fitting:
        kinds = " and ".join(KINDS[kind].singular for kind in fitting)
        raise ArgumentTypeError(f"plugins={describe(plugin)} is {kinds} at once: it can't be told which is meant.")
    if isinstance(plugin, type):
        raise ArgumentTypeError(f"plugins= got {describe(plugin)}: give an object, {plugin.__name__}(...).")
    for kind, argument in _OTHER_ARGUMENTS.items():
        if isinstance(plugin, interface_of(kind)):
            raise ArgumentTypeError(
                f"plugins= got {describe(plugin)}, a {KINDS[kind].singular}: it goes into {argument}"
            )
    raise ArgumentTypeError(f"plugins= got {describe(plugin)}. What can stand there is {allowed}.")


def _kind_of_name(text: str) -> str:
    reference = parse_reference(text)
    if reference.kind is not None:
        if reference.kind not in PLUGIN_KINDS:
            other = _OTHER_ARGUMENTS.get(reference.kind)
            hint = f"It goes into {other}" if other else "That is found by itself, and isn't given to a Fabric."
            raise ArgumentValueError(f"plugins={text!r} names one of the {reference.kind}. {hint}")
        return reference.kind
    offering = [kind for kind in PLUGIN_KINDS if _offers(kind, reference.name)]
    if len(offering) > 1:
        forms = " or ".join(repr(f"{kind}/{text}") for kind in offering)
        raise ArgumentValueError(f"plugins={text!r} fits several kinds. Say which is meant: {forms}.")
    return offering[0] if offering else _kind_by_failure(text, reference.name)


def _offers(kind: str, name: str) -> bool:
    return fold(name) in {fold(offered) for offered in registry.names(kind)}


def _kind_by_failure(text: str, name: str) -> str:
    """Nothing offers the name for now: find out why, or where else it would belong."""
    if fold(name) in LEGACY_PRECISIONS:
        raise ArgumentValueError(
            f"plugins={text!r}: a precision in its old spelling. Write precision={LEGACY_PRECISIONS[fold(name)]!r}."
        )
    for kind, argument in _OTHER_ARGUMENTS.items():
        if _offers(kind, name):
            raise ArgumentValueError(f"plugins={text!r} names a {KINDS[kind].singular}: it goes into {argument}")
    unknown: list[str] = []
    for kind in PLUGIN_KINDS:
        try:
            registry.find(kind, text)
        except UnknownNameError as error:
            unknown.append(str(error))
        except LookupFailedError:
            raise
        else:
            return kind
    offered = sorted({f"{kind}/{offer}" for kind in PLUGIN_KINDS for offer in registry.names(kind)})
    raise UnknownNameError(
        f"plugins={text!r}: no installed plugin offers this name. The names that can stand there are "
        f"{', '.join(offered)}."
    )
