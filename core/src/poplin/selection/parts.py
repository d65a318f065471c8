"""Precision, checkpoint IO and launcher."""

from __future__ import annotations

from collections.abc import Mapping

from poplin import registry
from poplin.accelerators.accelerator import Accelerator
from poplin.checkpoint.checkpoint_io import CheckpointIO
from poplin.environments.environment import ClusterEnvironment
from poplin.errors import SelectionError
from poplin.launchers.launcher import Launcher
from poplin.precision.precision import Precision
from poplin.registry.names import fold, parse_reference
from poplin.selection.carried import Carried, carried_by
from poplin.selection.common import because, choose, created, guarded, instance_of, label_of
from poplin.selection.request import Request, Source
from poplin.selection.trace import Trace
from poplin.strategies.strategy import Strategy

_DEFAULT_PRECISION = "32-true"
_DEFAULT_CHECKPOINT_IO = "torch"
_DEFAULT_LAUNCHER = "subprocess"


# --- precision


def resolve_precision(
    request: Request,
    plugins: Mapping[str, Source],
    carried: Carried,
    accelerator: Accelerator,
    strategy: Strategy,
    trace: Trace,
) -> Precision:
    """The precision: the user's object, else the strategy's own for the name, else the registry's.

    Raises:
        ContradictionError: argument, ``plugins=`` and strategy object differ.
        LookupFailedError: the name can't be had.
        SelectionError: it can't serve this device type, or the strategy refuses it.
    """
    sources = (*request.all_explicit("precision"), plugins.get("precisions"), carried.source("precision"))
    source = choose("precision", sources, _same_precision)
    reason = because(request, "precision", source, "nothing was asked for")
    if source is not None and not isinstance(source.value, str):
        precision = instance_of(source.value, Precision, source.origin)
        trace.note("precision", precision.precision, reason, label_of(precision))
    elif source is None and isinstance(own := carried_by(strategy).value("precision"), Precision):
        precision = own  # a strategy made by name may have one of its own
        trace.note("precision", precision.precision, f"{reason}, and the strategy brings it", label_of(precision))
    else:
        precision = _precision_by_name(source.value if source else _DEFAULT_PRECISION, strategy, reason, trace)
    _check_precision(precision, accelerator, strategy)
    return precision


def _precision_by_name(name: str, strategy: Strategy, reason: str, trace: Trace) -> Precision:
    reference = parse_reference(name)
    if reference.distribution is None:  # who names the distribution wants that one's
        canonical = fold(reference.name)
        own = guarded(f"{label_of(strategy)}: make_precision()", strategy.make_precision, canonical)
        if own is not None:
            precision = instance_of(own, Precision, f"make_precision({canonical!r}) of {type(strategy).__name__}")
            trace.note("precision", precision.precision, f"{reason}; the strategy's own", label_of(precision))
            return precision
    found = registry.find("precisions", name)
    trace.note("precision", found.name, reason, found.provider)
    return created(found, Precision)


def _same_precision(one: object, other: object) -> bool:
    names = [
        fold(parse_reference(name).name) if name else None for name in (_precision_name(one), _precision_name(other))
    ]
    if isinstance(one, Precision) and isinstance(other, Precision):
        return one is other  # their settings may differ
    return None not in names and names[0] == names[1]


def _precision_name(value: object) -> str | None:
    name = value.precision if isinstance(value, Precision) else value
    return name if isinstance(name, str) else None


def _check_precision(precision: Precision, accelerator: Accelerator, strategy: Strategy) -> None:
    name, device_type = precision.precision, accelerator.device_type
    if precision.device_types is not None and device_type not in precision.device_types:
        raise SelectionError(
            f"precision={name!r} ({label_of(precision)}) can't be used on {device_type!r} devices, only on "
            f"{', '.join(precision.device_types)}. Choose another precision, or another accelerator."
        )
    refusal = guarded(f"{label_of(strategy)}: accepts_precision()", strategy.accepts_precision, precision)
    if refusal is not None:
        raise SelectionError(
            f"The strategy {type(strategy).__name__} can't be used with precision={name!r}: {refusal}. "
            "Choose another precision, or another strategy."
        )


# --- checkpoint IO


def resolve_checkpoint_io(
    plugins: Mapping[str, Source], carried: Carried, strategy: Strategy, trace: Trace
) -> CheckpointIO:
    """The checkpoint IO: the one asked for, else the strategy's wish, else torch's file format."""
    source = choose("checkpoint IO", (plugins.get("checkpoint_ios"), carried.source("checkpoint_io")))
    if source is not None and not isinstance(source.value, str):
        checkpoint_io = instance_of(source.value, CheckpointIO, source.origin)
        trace.note(
            "checkpoint_io", type(checkpoint_io).__name__, f"asked for: {source.origin}", label_of(checkpoint_io)
        )
        return checkpoint_io
    if source is not None:
        name, reason = source.value, f"asked for: {source.origin}"
    elif isinstance(own := carried_by(strategy).value("checkpoint_io"), CheckpointIO):
        reason = "nothing was asked for, and the strategy brings it"
        trace.note("checkpoint_io", type(own).__name__, reason, label_of(own))
        return own
    elif strategy.checkpoint_io_name is not None:
        name, reason = strategy.checkpoint_io_name, f"nothing was asked for, and {type(strategy).__name__} wants it"
    else:
        name, reason = _DEFAULT_CHECKPOINT_IO, "nothing was asked for"
    found = registry.find("checkpoint_ios", name)
    trace.note("checkpoint_io", found.name, reason, found.provider)
    return created(found, CheckpointIO)


# --- launcher


def resolve_launcher(
    plugins: Mapping[str, Source],
    carried: Carried,
    strategy: Strategy,
    environment: ClusterEnvironment,
    interactive: bool,
    trace: Trace,
) -> Launcher | None:
    """What starts the processes, or None where they exist or aren't needed.

    Raises:
        SelectionError: an interactive session, and a launcher that would run the script again.
    """
    source = choose("launcher", (plugins.get("launchers"), carried.source("launcher")))
    external = guarded(
        f"{label_of(environment)}: creates_processes_externally", lambda: environment.creates_processes_externally
    )
    if external:
        unused = [(source.origin, "there is nothing to launch")] if source is not None else []
        trace.note("launcher", "none", f"{type(environment).__name__} says that the processes exist", None, unused)
        return None
    if source is None and not strategy.needs_launch:
        trace.note("launcher", "none", f"{type(strategy).__name__} needs no launched processes")
        return None
    launcher, name = _launcher(source, strategy, trace)
    if interactive and not guarded(f"{label_of(launcher)}: interactive", lambda: launcher.is_interactive_compatible):
        raise SelectionError(
            f"The launcher {name!r} can't be used in an interactive session or notebook: the processes that it starts "
            f"have no script there to run, and can't import what was typed. {type(strategy).__name__} needs processes: "
            "use plugins='fork' (or a strategy made for notebooks) and fabric.launch(function), or devices=1 with "
            "strategy='auto', or put the code into a script."
        )
    return launcher


def _launcher(source: Source | None, strategy: Strategy, trace: Trace) -> tuple[Launcher, str]:
    wish = strategy.launcher_name
    unmet = (
        [(wish, f"{type(strategy).__name__} wants it, and what was asked for goes first")] if source and wish else []
    )
    if source is not None and not isinstance(source.value, str):
        launcher = instance_of(source.value, Launcher, source.origin)
        trace.note("launcher", type(launcher).__name__, f"asked for: {source.origin}", label_of(launcher), unmet)
        return launcher, type(launcher).__name__
    if source is not None:
        name, reason = source.value, f"asked for: {source.origin}"
    elif wish is not None:
        name, reason = wish, f"{type(strategy).__name__} wants it"
    else:
        name, reason = _DEFAULT_LAUNCHER, f"{type(strategy).__name__} needs processes, and wants no other way"
    found = registry.find("launchers", name)
    if fold(found.name) == fold(wish or ""):
        unmet = []
    trace.note("launcher", found.name, reason, found.provider, unmet)
    return created(found, Launcher), found.name
