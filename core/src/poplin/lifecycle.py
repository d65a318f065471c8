"""The life of one Fabric: created, launched, closed; and what belongs to each of these moments."""

from __future__ import annotations

import atexit
import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poplin import rank_zero
from poplin.checkpoint import asynchronous
from poplin.errors import ArgumentTypeError, NotLaunchedError, UsageError
from poplin.registry import hookspecs
from poplin.seed import collect_rng_states, restore_rng_states, track_accelerator
from poplin.utilities import final, unwinding

if TYPE_CHECKING:
    from poplin.fabric import Fabric
    from poplin.preemption import Preemption

_OPEN: weakref.WeakSet[Fabric] = weakref.WeakSet()


class Life:
    """Where one Fabric stands in its life, in this process."""

    def __init__(self) -> None:
        self.launched = False
        self.closed = False
        self.running = False  # inside a function that launch() runs
        self.reported: BaseException | None = None  # the exception that callbacks have been told of
        self.preemption: Preemption | None = None


def created(fabric: Fabric) -> None:
    """The constructor is done: bring up what needs no launch, and tell the ambient plugins."""
    selection = fabric._selection
    if not fabric.strategy.needs_launch or selection.under_cli:
        bring_up(fabric)
    _OPEN.add(fabric)
    hookspecs.fabric_created(fabric)
    if fabric._life.launched:
        hookspecs.processes_launched(fabric)


def bring_up(fabric: Fabric) -> None:
    """This process is one of the run's: make its device current and bring up its process group."""
    try:
        fabric.strategy.setup_environment()
    except BaseException:
        _teardown(fabric, suppressed=True)
        raise
    rank_zero.set_rank(fabric.strategy.global_rank)
    track_accelerator(fabric.accelerator)
    fabric._life.launched = True
    _OPEN.add(fabric)
    for logger in fabric._loggers:
        tell = getattr(logger, "processes_launched", None)
        if callable(tell):
            tell(fabric.strategy)
    if fabric._callbacks.live("on_preempt"):
        _preemption(fabric).arm()


def require_processes(fabric: Fabric, method: str) -> None:
    """The processes that ``method`` needs exist.

    Raises:
        NotLaunchedError: they don't: ``launch()`` comes first.
        UsageError: the Fabric is closed.
    """
    if fabric._life.launched:
        return
    if fabric._life.closed:
        raise UsageError(f"This Fabric is closed: {method}() can't be called any more. Make a new one.")
    raise NotLaunchedError(
        f"{method}() needs the processes of {type(fabric.strategy).__name__}, and they are not launched. Call "
        "fabric.launch() first, or fabric.launch(main) with a function main(fabric), or start the script with "
        "`poplin run`."
    )


# --- launching


def launch(fabric: Fabric, function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Start the processes (once), and run ``function`` in each."""
    life = fabric._life
    if life.closed:
        raise UsageError("This Fabric is closed: launch() can't be called any more. Make a new one.")
    launcher = fabric._selection.launcher
    if life.launched or launcher is None:
        if not life.launched:  # whoever started this process made the others too
            bring_up(fabric)
            hookspecs.processes_launched(fabric)
        return run_here(fabric, function, args, kwargs)
    if function is None and launcher.needs_function:
        raise ArgumentTypeError(
            f"The launcher of {type(fabric.strategy).__name__} runs a function in each process, so launch() needs one: "
            "move your code to `def main(fabric): ...` and call fabric.launch(main)."
        )
    try:
        return launcher.launch(run_in_worker, fabric, function, args, kwargs)
    except BaseException as error:
        _fail(fabric, error)
        raise


def run_in_worker(
    fabric: Fabric, function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a launcher runs in each process: bring up the run, then the user's function."""
    bring_up(fabric)
    hookspecs.processes_launched(fabric)
    launcher = fabric._selection.launcher
    if launcher is not None and launcher.needs_function:  # this process lives for the function alone
        with fabric:
            return run_here(fabric, function, args, kwargs)
    return run_here(fabric, function, args, kwargs)


def run_here(fabric: Fabric, function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the user's function in this process."""
    if function is None:
        return None
    was_running, fabric._life.running = fabric._life.running, True
    try:
        return function(fabric, *args, **kwargs)
    except BaseException as error:
        _fail(fabric, error)
        raise
    finally:
        fabric._life.running = was_running


def launching_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """A subclass's ``run`` that launches the processes first."""

    @functools.wraps(run)
    def launch_and_run(self: Fabric, *args: Any, **kwargs: Any) -> Any:
        if self._life.running:
            return run(self, *args, **kwargs)
        return self.launch(_call_run, *args, **kwargs)

    return launch_and_run


def _call_run(fabric: Fabric, *args: Any, **kwargs: Any) -> Any:
    return fabric.run(*args, **kwargs)


# --- the end


def _fail(fabric: Fabric, error: BaseException) -> None:
    """An exception leaves ``launch`` or the ``with`` block: tell the callbacks, once, then close."""
    close(fabric, error)


def close(fabric: Fabric, error: BaseException | None = None, failed: bool = False) -> None:
    """Tell callbacks and loggers, then give back what was taken, in reverse order. Once.

    Args:
        fabric: the Fabric.
        error: the exception that ends the run, if one does; it is never hidden by what goes wrong here.
        failed: an exception has ended the script, and callbacks are not told of it.
    """
    life = fabric._life
    if life.closed:
        return
    life.closed = True  # first, so that a callback which closes does not come here again
    if error is not None:
        _tell(fabric, "on_exception", exception=error)
    _tell(fabric, "on_close")
    failed = failed or error is not None
    failure: BaseException | None = None
    for logger in fabric._loggers:
        finalize = getattr(logger, "finalize", None)
        if callable(finalize):
            failure = _attempt(functools.partial(finalize, "failed" if failed else "success"), failure)
    failure = _attempt(fabric._setups.finish, failure)
    failure = _attempt(lambda: asynchronous.close(fabric.strategy, failed=failed), failure)
    hookspecs.fabric_closed(fabric)
    failure = _teardown(fabric, failure=failure)
    life.launched = False
    _OPEN.discard(fabric)
    if not any(other._life.launched for other in _OPEN):
        rank_zero.set_rank(rank_zero.rank_from_environment())
    if failure is not None:
        if error is None:
            raise failure
        warnings.warn(f"Closing after {type(error).__name__}: {failure}", stacklevel=3)


def _tell(fabric: Fabric, hook: str, **kwargs: Any) -> None:
    for callback, failure in fabric._callbacks.tell(hook, **kwargs):
        warnings.warn(f"{type(callback).__name__}.{hook} failed: {type(failure).__name__}: {failure}", stacklevel=4)


def _teardown(fabric: Fabric, failure: BaseException | None = None, suppressed: bool = False) -> BaseException | None:
    life, selection = fabric._life, fabric._selection
    parts: list[Any] = [
        life.preemption,
        *reversed(fabric._loggers),
        selection.launcher,
        selection.checkpoint_io,
        selection.precision,
        selection.strategy,
        selection.environment,
        selection.accelerator,
    ]
    for part in parts:
        teardown = getattr(part, "teardown", None)
        if callable(teardown):
            failure = _attempt(teardown, failure)
    if suppressed and failure is not None:
        warnings.warn(f"Giving back what was taken failed too: {failure}", stacklevel=3)
    return failure


def _attempt(action: Callable[[], Any], failure: BaseException | None) -> BaseException | None:
    try:
        action()
    except Exception as error:
        if failure is None:
            return error
        warnings.warn(f"While closing: {type(error).__name__}: {error}", stacklevel=3)
    return failure


@atexit.register
def _close_at_exit(failed: bool = False) -> None:
    """A Fabric that nobody closed: its loggers are flushed and its process group is destroyed all the same."""
    failed = failed or _script_has_failed()
    for fabric in list(_OPEN):
        try:
            close(fabric, failed=failed)
        except Exception as error:
            warnings.warn(f"Closing a Fabric at exit: {type(error).__name__}: {error}", stacklevel=1)


def _script_has_failed() -> bool:
    """Whether an exception, or a signal, has ended the script: then other ranks may be anywhere."""
    by_exception = getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
    return by_exception or unwinding.is_aborting() or unwinding.was_told_to_end()


final.before_waiting(functools.partial(_close_at_exit, failed=True))


# --- small parts of methods


def should_stop(fabric: Fabric) -> bool:
    """See ``Fabric.should_stop``."""
    preemption = fabric._life.preemption or _preemption(fabric)
    if preemption.notified:
        return True
    if preemption.should_stop():
        for fire in fabric._callbacks.live("on_preempt"):
            fire()
        return True
    return False


def _preemption(fabric: Fabric) -> Preemption:
    from poplin.preemption import Preemption

    require_processes(fabric, "should_stop")
    if fabric._life.preemption is None:
        fabric._life.preemption = Preemption(fabric.strategy, fabric._selection.environment)
    return fabric._life.preemption


def state_dict(fabric: Fabric) -> dict[str, Any]:
    """See ``Fabric.state_dict``."""
    return {
        "rng": collect_rng_states(fabric.accelerator),
        "dataloaders": [loader.state_dict() for loader in fabric._setups.dataloaders],
    }


def load_state_dict(fabric: Fabric, state: Mapping[str, Any]) -> None:
    """See ``Fabric.load_state_dict``."""
    for loader, position in zip(fabric._setups.dataloaders, state["dataloaders"], strict=False):
        loader.load_state_dict(position)
    restore_rng_states(state["rng"], fabric.accelerator)


def load_per_rank_states(fabric: Fabric, states: Sequence[Mapping[str, Any]], rank: int) -> None:
    """See ``Fabric.load_per_rank_states``."""
    if rank < len(states):
        load_state_dict(fabric, states[rank])
        return
    for loader, position in zip(fabric._setups.dataloaders, states[0]["dataloaders"], strict=False):
        loader.load_state_dict(position)
