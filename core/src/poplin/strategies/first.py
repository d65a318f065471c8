"""One rank first, the others after it: they wait as long as it lives."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from poplin.errors import CollectiveError, UsageError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

#: Seconds between two looks at the leader; the first ones come sooner.
_LONGEST_PAUSE = 0.25


@contextmanager
def first(store: Store | None, name: str, leads: bool, leader: str) -> Iterator[None]:
    """The leader's body runs before the others'.

    The others don't sit in a collective, whose timeout a long download would exceed, and in which a signal would not
    be served: they look again and again. Where the leader runs on the same machine its process is looked at; elsewhere
    the store, which rank 0 or the launcher's agent hosts, goes with it.

    Args:
        store: shared by all ranks.
        name: of this occasion, the same on all ranks and never used before.
        leads: whether this rank is the leader.
        leader: who it is, for messages.

    Raises:
        CollectiveError: on the others: the leader raised, or died.
        UsageError: there is no store.
    """
    if store is None:
        raise UsageError(
            "rank_zero_first needs the store of the process group, and this torch gives no way to that of a group that "
            "somebody else made. Use fabric.barrier() around the part of rank 0."
        )
    if not leads:
        _wait(store, name, leader)
        yield
        return
    store.set(f"{name}/who", json.dumps(_whereabouts(os.getpid())))
    try:
        yield
    except BaseException as error:
        _tell(store, name, f"{type(error).__name__}: {error}")
        raise
    _tell(store, name, None)


def _tell(store: Store, name: str, error: str | None) -> None:
    try:
        store.set(f"{name}/done", json.dumps(error))
    except RuntimeError:  # nobody is left to be told
        pass


def _wait(store: Store, name: str, leader: str) -> None:
    pause = 0.002
    who: dict[str, Any] | None = None
    while True:
        try:
            if store.check([f"{name}/done"]):
                error = json.loads(store.get(f"{name}/done"))
                break
            if who is None and store.check([f"{name}/who"]):
                who = json.loads(store.get(f"{name}/who"))
        except RuntimeError as lost:
            raise CollectiveError(
                f"{leader} died, or its machine can't be reached any more, while the others waited for it in "
                "rank_zero_first."
            ) from lost
        if who is not None and _has_ended(who) and not store.check([f"{name}/done"]):  # it may have told us before
            raise CollectiveError(f"{leader} (process {who['pid']}) died while the others waited in rank_zero_first.")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    if error is not None:
        raise CollectiveError(f"{leader} failed in rank_zero_first: {error}")


def _machine() -> str:
    """Machine and process namespace: where process ids mean the same."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}/{namespace}"


def _has_ended(who: dict[str, Any]) -> bool:
    """Whether a process of this machine is no more. Of another machine's nothing is known."""
    return who["machine"] == _machine() and _whereabouts(who["pid"]) != who


def _whereabouts(pid: int) -> dict[str, Any] | None:
    """What tells a process from any other, or None if it has ended."""
    started = ""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        started = fields[19]  # start time in clock ticks: a process id may be given again
    except ProcessLookupError:
        return None
    except OSError:  # no /proc, or not ours to signal: it exists
        pass
    return {"pid": pid, "started": started, "machine": _machine()}
