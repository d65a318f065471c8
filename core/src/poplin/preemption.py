"""Ending a run in good time when its scheduler takes the machine away.

A rank that gets SIGTERM, SIGUSR1 or its scheduler's signal takes a note of it. Every 16th read of ``should_stop`` the
ranks compare notes (one small collective), so that all of them see True at the same read: none is left waiting in a
collective that the others will not come to.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from poplin.errors import UsageError
from poplin.utilities import unwinding

if TYPE_CHECKING:
    from poplin.environments.environment import ClusterEnvironment
    from poplin.strategies.strategy import Strategy

#: The ranks compare notes at every so-many-th read.
READS_BETWEEN_AGREEMENTS = 16
#: A signal that comes again within this time is the same notice: a scheduler signals all processes of a job, and a
#: launcher among them hands on what it got. In seconds.
_ECHO_SECONDS = 0.5

#: Those that are armed in this process, the first one first.
_armed: list[Preemption] = []


class Preemption:
    """Notices of preemption in this process, and the agreement about them across ranks.

    Args:
        strategy: its ``reduce_boolean_decision`` compares the notes of the ranks.
        environment: its ``preemption_signals`` are listened to, and SIGTERM and SIGUSR1.
    """

    def __init__(self, strategy: Strategy, environment: ClusterEnvironment | None = None) -> None:
        self._strategy = strategy
        self._signals = _signals_of(environment)
        self._reads = 0
        self._agreed = False
        self._noticed = False
        self._noticed_at = 0.0
        self._previous: dict[int, Any] = {}
        self._pid = os.getpid()
        self._alone = strategy.world_size == 1

    @property
    def notified(self) -> bool:
        """Whether all ranks have agreed to stop."""
        return self._agreed

    @property
    def armed(self) -> bool:
        """Whether signals are noted now."""
        return self in _armed

    def should_stop(self) -> bool:
        """Whether to stop: the same answer at the same read on every rank, at most 16 reads after a signal.

        The first read arms it.

        Raises:
            UsageError: the first read is made in another thread than the main one.
        """
        if self._agreed:
            return True
        if not self._previous:
            self.arm()
        if self._alone:
            self._agreed = self._noticed
            return self._agreed
        self._reads += 1
        if self._reads % READS_BETWEEN_AGREEMENTS:
            return False
        self._agreed = self._strategy.reduce_boolean_decision(self._noticed, all=False)
        return self._agreed

    def arm(self) -> None:
        """Listen from now on: a signal is noted, and no longer ends the process. Again is a no-op.

        A handler that the user has set in Python is called as well. A second signal ends the process.

        Raises:
            UsageError: in another thread than the main one, where Python lets nobody listen.
        """
        if self._previous:
            return
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                f"should_stop was first read in the thread {threading.current_thread().name!r}. It listens to signals, "
                "which Python allows in the main thread only: read it there once (or give Fabric a callback with "
                "on_preempt), after that any thread may read it."
            )
        for signum in self._signals:
            previous = signal.getsignal(signum)
            if previous is None:
                continue  # a handler that was not set from Python can't be given back: leave it
            self._previous[signum] = previous
            signal.signal(signum, self._receive)
        _armed.append(self)
        _tell_launcher(True)

    def notify(self, signum: int) -> None:
        """Take note of a signal that came another way, from the launching process for instance."""
        if not self._noticed:
            self._noticed, self._noticed_at = True, time.monotonic()

    def teardown(self) -> None:
        """Give the signals back. Called when Fabric is closed."""
        if self not in _armed:
            return
        _armed.remove(self)
        if self._pid != os.getpid():
            return
        if not _armed:
            _tell_launcher(False)
        if threading.current_thread() is threading.main_thread():
            for signum, previous in self._previous.items():
                if signal.getsignal(signum) == self._receive:
                    signal.signal(signum, previous)
            self._previous.clear()

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        previous = self._previous.get(signum, signal.SIG_DFL)
        if self._pid != os.getpid():  # inherited by a forked child, which has nothing to save
            _deliver(signum, signal.SIG_DFL, frame)
        elif signum == signal.SIGTERM and unwinding.is_aborting():  # another rank has failed: there is nothing to save
            _deliver(signum, previous, frame)
        elif not self._noticed:
            self.notify(signum)
            if callable(previous) and not unwinding.is_own(previous):
                previous(signum, frame)
        elif time.monotonic() - self._noticed_at > _ECHO_SECONDS:
            _deliver(signum, previous, frame)


def notify_all(signum: int) -> bool:
    """A signal that is meant for the run has come to the launching process.

    Returns:
        Whether anyone here listens.
    """
    for preemption in list(_armed):
        preemption.notify(signum)
    return bool(_armed)


def _signals_of(environment: ClusterEnvironment | None) -> tuple[signal.Signals, ...]:
    wanted = {signal.SIGTERM, *getattr(environment, "preemption_signals", ())}
    if hasattr(signal, "SIGUSR1"):
        wanted.add(signal.SIGUSR1)
    return tuple(sorted(wanted))


def _deliver(signum: int, handler: Any, frame: FrameType | None) -> None:
    """Let the signal do what it would have done."""
    if callable(handler):
        handler(signum, frame)
    elif handler != signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _tell_launcher(armed: bool) -> None:
    from poplin.launchers import guest

    guest.on_notice = notify_all
    guest.tell("armed", armed)
