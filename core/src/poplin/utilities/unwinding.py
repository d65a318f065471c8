"""How a process of a run ends when it is told to: its ``finally`` blocks run, in a limited time.

Python's own answer to SIGTERM is to die at once. While a run is up, the signal raises :class:`Terminated` in the main
thread instead, and the process ends with the exit code that a shell gives to one that the signal killed (143).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from poplin.utilities.environ import seconds_from_environment

#: Seconds between SIGTERM and SIGKILL where nobody says otherwise.
DEFAULT_GRACE_SECONDS = 10.0
GRACE_VARIABLE = "POPLIN_GRACE"


class Terminated(SystemExit):
    """SIGTERM, as an exception: ``finally`` blocks run on its way out, and ``except Exception`` does not hold it."""


def let_through(error: BaseException) -> None:
    """Raise again what is meant for this process: Ctrl-C, SIGTERM, the end of a generator.

    Whatever else comes out of somebody's code is of that code, also where it is no ``Exception``: `sys.exit()` in a
    module, `pytest.skip()`, the panics of native libraries.

    Raises:
        BaseException: ``error``, if it is one of these.
    """
    if isinstance(error, (KeyboardInterrupt, GeneratorExit, Terminated)):
        raise error


def grace_seconds() -> float:
    """The time between SIGTERM and SIGKILL: ``POPLIN_GRACE`` seconds, 10 by default.

    Raises:
        ArgumentValueError: the variable can't be read.
    """
    return seconds_from_environment(GRACE_VARIABLE, DEFAULT_GRACE_SECONDS)


class _State:
    """What this process knows of its own ending."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.users = 0
        self.previous: dict[int, Any] = {}
        self.aborting = False
        self.unwinding_since: float | None = None
        self.signum: int | None = None
        self.grace = DEFAULT_GRACE_SECONDS


_state = _State()


def _here() -> _State:
    global _state
    if _state.pid != os.getpid():  # a forked child has a life of its own
        _state = _State()
    return _state


def is_aborting() -> bool:
    """Whether the run is being ended because a process of it failed, so that SIGTERM is no notice of preemption."""
    return _here().aborting


def install() -> bool:
    """Let SIGTERM unwind the main thread. Each call needs one :func:`restore`.

    A handler of the user's own, for either signal, is left as it is; and in another thread than the main one Python
    lets nobody set a handler.

    Returns:
        Whether SIGTERM now unwinds.
    """
    state = _here()
    state.users += 1
    state.grace = grace_seconds()
    if threading.current_thread() is threading.main_thread():
        for signum, default, handler in (
            (signal.SIGTERM, signal.SIG_DFL, _on_terminate),
            (signal.SIGINT, signal.default_int_handler, _on_interrupt),
        ):
            current = signal.getsignal(signum)
            if current is default or (current is handler and signum not in state.previous):
                signal.signal(signum, handler)
                state.previous[signum] = default
    return signal.SIGTERM in state.previous


def restore() -> None:
    """Give the signals back, with the last of the users."""
    state = _here()
    state.users = max(0, state.users - 1)
    if state.users or threading.current_thread() is not threading.main_thread():
        return
    for signum, handler in ((signal.SIGTERM, _on_terminate), (signal.SIGINT, _on_interrupt)):
        if signum in state.previous and signal.getsignal(signum) is handler:
            signal.signal(signum, state.previous[signum])
    state.previous.clear()


def abort() -> bool:
    """End this process's run from another thread: the main thread unwinds.

    Returns:
        Whether it will; if not, nobody has set a handler for SIGTERM, and nothing was done.
    """
    state = _here()
    state.aborting = True
    handler = signal.getsignal(signal.SIGTERM)
    if handler is None or handler is signal.SIG_IGN or handler is signal.SIG_DFL:
        return False
    signal_main_thread(signal.SIGTERM)
    return True


def signal_main_thread(signum: int) -> None:
    """Send a signal to this process in such a way that it wakes the main thread, where Python's handlers run.

    (A signal to the process may be taken by any of its threads, and the main one sleeps on.)
    """
    ident = threading.main_thread().ident
    if ident is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(ident, signum)
    else:
        os.kill(os.getpid(), signum)


def is_own(handler: Any) -> bool:
    """Whether a signal handler is one of these here."""
    return handler is _on_terminate or handler is _on_interrupt


def note_unwinding() -> None:
    """The main thread is on its way out already: a signal must not cut its ``finally`` blocks short."""
    _here().unwinding_since = time.monotonic()


def was_told_to_end() -> bool:
    """Whether a SIGTERM from outside has unwound this process."""
    state = _here()
    return state.signum is not None and not state.aborting


def _is_unwinding(state: _State) -> bool:
    return state.unwinding_since is not None and time.monotonic() - state.unwinding_since < state.grace


def _on_terminate(signum: int, frame: FrameType | None) -> None:
    if _state.pid != os.getpid():  # inherited by a forked child, which never asked for it
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        return
    if _is_unwinding(_state):
        return
    _state.unwinding_since = time.monotonic()
    _state.signum = signum
    raise Terminated(1 if _state.aborting else 128 + signum)


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    if _state.pid == os.getpid():
        _state.unwinding_since = time.monotonic()
    raise KeyboardInterrupt
