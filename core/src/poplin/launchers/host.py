"""The part of a launching process that watches over those that it launched.

The first rank that fails decides: the others are told to end, all together, get a time in which their ``finally``
blocks run, and are killed after it. What looks like a consequence of another rank's end (a lost connection) waits a
moment for its cause.
"""

from __future__ import annotations

import multiprocessing.connection
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from poplin.launchers import processes
from poplin.launchers.failure import Failure, of_exit_code

#: How long an error that looks like a consequence waits for its cause, in seconds.
_SETTLE_SECONDS = 1.5
#: How long a process that was told to end through its connection has to say that it will, in seconds.
_ACKNOWLEDGE_SECONDS = 0.5
#: How long the kernel has to end what was killed, in seconds.
_REAP_SECONDS = 5.0
#: How long a forkserver has to tell the exit code of a process that it has reaped, in seconds.
_TELL_SECONDS = 1.0
_STEP_SECONDS = 0.1


@dataclass
class Member:
    """One launched process, as the launching one knows it.

    Attributes:
        rank: global rank.
        pid: process id.
        poll: returns the exit code (negative for a signal), or None while it runs.
        connection: to it; None when it is closed.
        must_return: whether it must say that its work is done before it ends.
    """

    rank: int
    pid: int
    poll: Callable[[], int | None]
    connection: Connection | None
    must_return: bool
    code: int | None = None
    greeted: bool = False
    armed: bool = False
    aborting: bool = False
    terminated: bool = False
    returned: bool = False
    result: bytes | None = None
    failure: Failure | None = None
    where: tuple[str, str | None] | None = None
    killed: bool = False
    gone_at: float | None = None

    def tell(self, kind: str, content: Any = None) -> bool:
        """Send it a message; False if that can't be done."""
        if self.connection is None:
            return False
        try:
            self.connection.send((kind, content))
        except (OSError, ValueError):
            return False
        return True


class Host:
    """Watches over the launched processes until all have ended. All methods may be called from any thread.

    Args:
        members: the launched processes.
        world_size: number of ranks of the run.
        grace: seconds between SIGTERM and SIGKILL.
        mark: environment variable and value by which what the processes themselves have started is known.
        on_failure: called once, when it is known which rank failed first.
    """

    def __init__(
        self,
        members: Sequence[Member],
        world_size: int,
        grace: float,
        mark: tuple[str, str],
        on_failure: Callable[[Failure], None] | None = None,
    ) -> None:
        self.members = list(members)
        self.world_size = world_size
        self.grace = grace
        self.first: Failure | None = None
        self.aborted_at: float | None = None
        self._mark = mark
        self._on_failure = on_failure
        self._candidates: list[tuple[float, Failure]] = []
        self._kill_at = float("inf")
        self._swept = False
        self._lock = threading.RLock()

    # --- what others ask

    @property
    def alive(self) -> list[Member]:
        """Those that have not ended."""
        return [member for member in self.members if member.code is None]

    @property
    def ended(self) -> bool:
        """Whether all have ended (or can't be ended)."""
        return not self.alive or time.monotonic() > self._kill_at + _REAP_SECONDS

    def abort(self, first: Failure | None = None, grace: float | None = None) -> None:
        """End all that still run: SIGTERM together, SIGKILL after the grace. Again it can only shorten the grace."""
        with self._lock:
            grace = self.grace if grace is None else grace
            now = time.monotonic()
            if self.aborted_at is None:
                self.first = first
                self.aborted_at = now
                for member in self.alive:
                    if not (member.greeted and member.tell("abort", grace)):
                        member.aborting = True  # it has no way to answer: the signal itself must do
                        processes.send(member.pid, signal.SIGTERM)
                if first is not None and self._on_failure is not None:
                    self._on_failure(first)
            self._kill_at = min(self._kill_at, now + grace)

    def notify(self, signum: int) -> bool:
        """Hand a signal that is meant for the whole run to every rank.

        Returns:
            Whether a rank has armed itself for it; if none has, nothing was sent.
        """
        with self._lock:
            if not any(member.armed for member in self.alive):
                return False
            for member in self.alive:
                member.tell("notice", signum)
            return True

    def step(self, wait: float = _STEP_SECONDS) -> None:
        """Take in what has come, and do what is due."""
        connections = {member.connection: member for member in self.members if member.connection is not None}
        if connections:
            ready = multiprocessing.connection.wait(list(connections), wait)
        else:
            ready = []
            time.sleep(min(wait, 0.02))
        with self._lock:
            for connection in ready:
                self._receive(connections[connection])  # type: ignore[index]
            for member in self.alive:
                self._look(member)
            self._decide()
            self._enforce()

    def notes(self) -> list[str]:
        """What there is to say about ranks that did not end by themselves."""
        told = []
        for member in self.members:
            if member.killed:
                stack, collective = member.where or ("", None)
                sat = f"sat in the collective {collective}" if collective else "did not end"
                note = f"Rank {member.rank} {sat} to the end of the grace period of {self.grace:g} s and was killed."
                told.append(note if collective or not stack else f"{note} It was here:\n{stack.rstrip()}")
        told += [
            f"Process {member.pid} (rank {member.rank}) could not be killed: it is in the kernel, or in a debugger."
            for member in self.alive
        ]
        return told

    # --- what comes in

    def _receive(self, member: Member) -> None:
        assert member.connection is not None
        try:
            kind, content = member.connection.recv()
        except Exception:  # the end of the connection, or a message cut off by the end of the process
            member.connection.close()
            member.connection = None
            return
        if kind == "hello":
            member.greeted = True
            if self.aborted_at is not None:
                member.tell("abort", max(0.0, self._kill_at - time.monotonic()))
        elif kind == "armed":
            member.armed = bool(content)
        elif kind == "aborting":
            member.aborting = True
        elif kind == "terminated":
            member.terminated = True
        elif kind == "returned":
            member.returned, member.result = True, content
        elif kind == "failed":
            member.failure = content
            self._candidates.append((time.monotonic(), content))
        elif kind in ("where", "stuck"):
            member.where = content

    def _look(self, member: Member) -> None:
        code = member.poll()
        if code is None and member.connection is None and not processes.exists(member.pid):
            # Whose child it is (a forkserver, say) is about to tell its exit code. Where it comes to nothing, somebody
            # else has taken it: SIGCHLD is ignored, or there is a wait() for any child.
            now = time.monotonic()
            member.gone_at = now if member.gone_at is None else member.gone_at
            code = 0 if now - member.gone_at > _TELL_SECONDS else None
        if code is None:
            return
        while member.connection is not None and member.connection.poll(0):
            self._receive(member)
        member.code = code
        silent = member.failure is None and not member.returned
        fine = code == 0 and not member.must_return
        if silent and not fine and self.aborted_at is None and not (member.terminated and code in (143, -15)):
            member.failure = of_exit_code(member.rank, code, is_imported=member.must_return and not member.greeted)
            self._candidates.append((time.monotonic(), member.failure))
        elif silent and member.terminated and self.aborted_at is None:
            member.failure = Failure(member.rank, "was ended by SIGTERM", exit_code=code)
            self._candidates.append((time.monotonic(), member.failure))

    # --- what is due

    def _decide(self) -> None:
        failures = [(at, failure) for at, failure in self._candidates if not _is_clean_exit(failure)]
        if not failures or (self.first is not None and not self.first.is_consequence):
            return
        causes = [failure for _, failure in failures if not failure.is_consequence]
        if self.aborted_at is not None:
            if self.first is not None and causes:
                self.first = causes[0]
            return
        if causes:
            self.abort(causes[0])
        elif time.monotonic() - failures[0][0] > _SETTLE_SECONDS or not self.alive:
            self.abort(failures[0][1])

    def _enforce(self) -> None:
        if self.aborted_at is None:
            return
        now = time.monotonic()
        if now > self.aborted_at + _ACKNOWLEDGE_SECONDS:
            for member in self.alive:
                if not member.aborting:
                    member.aborting = True
                    processes.send(member.pid, signal.SIGTERM)
        if now > self._kill_at:
            for member in self.alive:
                if not member.killed:
                    member.killed = True
                    for pid in (*processes.descendants(member.pid), member.pid):
                        processes.send(pid, signal.SIGKILL)
        if not self.alive and not self._swept:
            self._swept = True  # what a rank had started and did not live to end
            for pid in processes.marked(*self._mark):
                processes.send(pid, signal.SIGKILL)


def _is_clean_exit(failure: Failure) -> bool:
    """``sys.exit()`` or ``sys.exit(0)``: an early end, and no failure."""
    return failure.is_exit and failure.exit_code in (None, 0)
