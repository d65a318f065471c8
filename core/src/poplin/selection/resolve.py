"""From a request to a selection whose objects are chosen and checked, and not bound yet."""

from __future__ import annotations

from poplin import registry
from poplin.errors import SelectionError
from poplin.registry import hookspecs
from poplin.selection.accelerator import resolve_accelerator
from poplin.selection.carried import carried_by
from poplin.selection.common import first_line, guarded, is_interactive, label, label_of
from poplin.selection.devices import resolve_devices
from poplin.selection.environment import resolve_environment
from poplin.selection.parts import resolve_checkpoint_io, resolve_launcher, resolve_precision
from poplin.selection.plugin_argument import sort_plugins
from poplin.selection.request import Request
from poplin.selection.result import Selection
from poplin.selection.strategy import check_strategy_object, resolve_strategy
from poplin.selection.trace import Trace


def resolve(request: Request, trace: Trace) -> Selection:
    """Choose every part of the run, one after the other, and ask whether they go together.

    Args:
        request: what was asked for.
        trace: takes each decision as it falls; of a refused request it holds those up to the error.

    Raises:
        PoplinError: no run can be made of the request.
    """
    interactive = is_interactive()
    registry.ambient()
    check_strategy_object(request)
    plugins = sort_plugins(request)
    carried = carried_by(request.strategy)
    accelerator = resolve_accelerator(request, carried, trace)
    environment = resolve_environment(plugins, carried, trace)
    devices, num_nodes = resolve_devices(request, carried, accelerator, environment, interactive, trace)
    strategy = resolve_strategy(request, accelerator, len(devices), num_nodes, interactive, trace)
    precision = resolve_precision(request, plugins, carried, accelerator, strategy, trace)
    checkpoint_io = resolve_checkpoint_io(plugins, carried, strategy, trace)
    launcher = resolve_launcher(plugins, carried, strategy, environment, interactive, trace)
    selection = Selection(
        accelerator=accelerator,
        devices=devices,
        num_nodes=num_nodes,
        environment=environment,
        strategy=strategy,
        precision=precision,
        checkpoint_io=checkpoint_io,
        launcher=launcher,
        trace=trace,
        under_cli=request.under_cli,
        interactive=interactive,
        request=request,
    )
    _check(selection)
    return selection


def _check(selection: Selection) -> None:
    """The vetoes: ours, the accelerator's, the strategy's, then those of ambient plugins."""
    _check_processes(selection)
    for part in (selection.accelerator, selection.strategy):
        guarded(f"{label_of(part)}: check() of {type(part).__name__}", part.check, selection)
    answers = hookspecs.check_selection(selection)
    asked = ["the accelerator", "the strategy", *(label(one.provider) for one in answers if one.error is None)]
    failed = [(label(one.provider), f"it failed ({first_line(one.error)})") for one in answers if one.error is not None]
    reason = f"asked whether all this goes together: {', '.join(asked)}"
    selection.trace.note("checks", "no veto", reason, passed_over=failed)


def _check_processes(selection: Selection) -> None:
    """Under the command line the other processes exist already: nobody would start them, and this one would wait."""
    size = len(selection.devices) * selection.num_nodes
    if not (selection.under_cli and size > 1 and selection.strategy.needs_launch):
        return
    environment = selection.environment
    who = label_of(environment)
    if not guarded(f"{who}: creates_processes_externally", lambda: environment.creates_processes_externally):
        raise SelectionError(
            f"The environment says that the command line started this script (LT_CLI_USED or POPLIN_CLI_USED is set), "
            f"and {type(environment).__name__} knows of no process that it started, where {size} are needed. Start the "
            "script by `poplin run`, or unset the variable, which may be left of another run."
        )
