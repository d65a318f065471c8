"""The part of a launched process that answers to the process that launched it.

The two are joined by a connection. Through it the process says how it ended; from it, it learns that it must end. If
the launching process dies, the launched one ends too: the connection breaks, and the parent's id changes.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from poplin.environments import place as places
from poplin.environments.place import Place
from poplin.launchers import processes
from poplin.launchers.failure import of_exception, where_is
from poplin.utilities import final, unwinding
from poplin.utilities.excepthook import ExceptionHook

#: How often a process looks whether the launching one still lives, in seconds.
_WATCH_SECONDS = 1.0
#: Asked first when the launching process hands on a signal that is meant for the run; says whether anyone listens.
on_notice: Callable[[int], bool] | None = None


class Guest:
    """This process, as the launching process knows it.

    Args:
        connection: to the launching process.
        rank: global rank of this process.
    """

    def __init__(self, connection: Connection, rank: int) -> None:
        self.rank = rank
        self.pid = os.getpid()
        self.grace = unwinding.grace_seconds()
        self._connection = connection
        self._lock = threading.Lock()
        self._host_pid = os.getppid()
        self._leaving = False
        self._told_of_exception = False
        self._hook: ExceptionHook | None = None

    def start(self) -> None:
        """Say hello, and watch from now on."""
        processes.die_with_parent()
        self.tell("hello")
        threading.Thread(target=self._watch, name="poplin-guest", daemon=True).start()

    def tell(self, kind: str, content: Any = None) -> bool:
        """Send a message to the launching process.

        Returns:
            Whether it was sent; if not, that process is gone.
        """
        data = pickle.dumps((kind, content))
        try:
            with self._lock:
                self._connection.send_bytes(data)
        except (OSError, ValueError):
            return False
        return True

    def tell_exception(self, error: BaseException) -> bool:
        """Say that this rank failed. What follows from being told to end is no failure, and says nothing new."""
        unwinding.note_unwinding()
        if self._told_of_exception or isinstance(error, unwinding.Terminated):
            return self.tell("terminated")
        self._told_of_exception = True
        return self.tell("failed", of_exception(error, self.rank))

    def sweep(self) -> None:
        """At the very end of a process that was told to end: what it has started, and did not end itself, goes too."""
        if self.pid == os.getpid() and (unwinding.is_aborting() or os.getppid() != self._host_pid):
            _kill_descendants()

    def leave(self) -> None:
        """The work is done: whatever happens to the launching process is no reason to end any more."""
        self._leaving = True

    # --- the exception hook, in processes that run the script

    def hook_exceptions(self) -> None:
        """Report an exception that ends this script; the launching process prints it."""
        self._hook = self._hook or ExceptionHook(self._on_exception)

    def unhook_exceptions(self) -> None:
        """Give the hook back, unless an exception is on its way out: it comes to the hook yet."""
        if self._hook is not None and sys.exc_info()[1] is None:
            self._hook.remove()
            self._hook = None

    def _on_exception(self, error: BaseException, hand_on: Callable[[], None]) -> None:
        if isinstance(error, KeyboardInterrupt) or not self.tell_exception(error):
            hand_on()

    # --- watching

    def _watch(self) -> None:
        while not self._leaving:
            try:
                message = self._connection.recv() if self._connection.poll(_WATCH_SECONDS) else None
            except (OSError, EOFError, pickle.UnpicklingError):
                self._orphaned()
                return
            if os.getppid() != self._host_pid:
                self._orphaned()
                return
            if message is not None:
                self._obey(*message)

    def _obey(self, kind: str, content: Any) -> None:
        if kind == "abort":
            self.tell("aborting")
            threading.Thread(target=self._end, args=(float(content),), name="poplin-abort", daemon=True).start()
        elif kind == "where":
            self.tell("where", where_is(_main_thread()))
        elif kind == "notice":
            self._notice(int(content))

    def _notice(self, signum: int) -> None:
        """The launching process got a signal that is meant for the run."""
        if on_notice is None or not on_notice(signum):
            unwinding.signal_main_thread(signum)

    def _end(self, grace: float) -> None:
        """Unwind the main thread; if it doesn't, say where it sits; the launching process does the rest."""
        if not unwinding.abort():
            processes.send(os.getpid(), signal.SIGTERM)
        time.sleep(max(0.0, grace - min(1.0, grace / 4)))
        self.tell("stuck", where_is(_main_thread(), at_the_end=True))
        time.sleep(grace + 5.0)  # it should have killed us by now
        self._kill_all()

    def _orphaned(self) -> None:
        if self._leaving:
            return
        if not unwinding.abort():
            processes.send(os.getpid(), signal.SIGTERM)
        time.sleep(self.grace)
        self._kill_all()

    def _kill_all(self) -> None:
        _kill_descendants()
        os.kill(os.getpid(), signal.SIGKILL)


class Attendance:
    """One Fabric's use of the guest in a process that runs the script: exceptions are told."""

    def __init__(self, guest: Guest | None) -> None:
        self._guest = guest
        if guest is not None and _count_user(1) == 1:
            guest.hook_exceptions()

    def leave(self) -> None:
        """Give the hook back, with the last of the users. The watch goes on. Again is a no-op."""
        guest, self._guest = self._guest, None
        if guest is not None and _count_user(-1) == 0:
            guest.unhook_exceptions()


_current: Guest | None = None
_users = 0


def current() -> Guest | None:
    """This process's guest, or None if no launch of ours has made the process."""
    return _current if _current is not None and _current.pid == os.getpid() else None


def become(connection: Connection, place: Place) -> Guest:
    """This process was launched: begin to answer."""
    global _current, _users
    _current, _users = Guest(connection, place.global_rank), 0
    _current.start()
    return _current


def watch_parent() -> None:
    """End this process, after the grace, when the process that started it ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        if not unwinding.abort():
            processes.send(os.getpid(), signal.SIGTERM)
        time.sleep(unwinding.grace_seconds())
        _kill_descendants()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="poplin-parent", daemon=True).start()


def attend() -> Attendance:
    """Begin to answer, in a process that learns its place from the environment. (The launching one needs nothing.)"""
    place, channel = places.current(), places.channel()
    if place is not None and channel is not None and current() is None and not places.is_launching():
        os.set_inheritable(channel, False)
        final.at_the_end(become(Connection(channel), place).sweep)
        return Attendance(current())
    runs_script = channel is not None and not places.is_launching()
    return Attendance(current() if runs_script else None)


def tell(kind: str, content: Any = None) -> None:
    """Send a message to the launching process, if there is one."""
    if (guest := current()) is not None:
        guest.tell(kind, content)


def _kill_descendants() -> None:
    for pid in processes.descendants(os.getpid()):
        processes.send(pid, signal.SIGKILL)


def _count_user(step: int) -> int:
    global _users
    _users += step
    return _users


def _main_thread() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident
