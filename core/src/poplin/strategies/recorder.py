"""Each rank's last collective, left in the store that all ranks share, for the case that one fails."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import NamedTuple

from torch.distributed import Store  # type: ignore[attr-defined]

from poplin.utilities import final

#: Seconds between two messages to the store: a loop of short collectives must not pay for them.
INTERVAL = 0.1


class Record(NamedTuple):
    """What a rank has left about one group."""

    #: How many collectives it has begun there.
    number: int
    #: The last of them, for people; empty if there was none.
    what: str


class Recorder:
    """Counts the collectives of this rank, and leaves the last one of each group in the store.

    At most one message an interval is sent: the first at once, later ones by a thread, so that what stands in the
    store is never older than an interval, whatever this rank is doing since.

    Args:
        store: shared by all ranks; None if there is no way to it.
        rank: the global rank of this process.
    """

    def __init__(self, store: Store | None, rank: int) -> None:
        self.store = store
        self.rank = rank
        self.pid = os.getpid()
        self._numbers: dict[str, int] = {}
        #: key in the store → the latest record; what has been sent of it
        self._latest: dict[str, tuple[int, object]] = {}
        self._flushed: dict[str, tuple[int, object]] = {}
        self._sent = 0.0
        self._sending = threading.Lock()
        self._dirty, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        _open.add(self)

    # --- what this rank does

    def begin(self, key: str, what: object) -> int:
        """This rank begins a collective of the group ``key``.

        Args:
            key: of the group.
            what: it is, for people. It becomes text only when it is sent.

        Returns:
            How many it has begun there, with this one.
        """
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        if self.store is None:
            return number
        self._latest[key] = (number, what)
        if time.monotonic() - self._sent >= INTERVAL:
            self.flush()
        elif not self._dirty.is_set():
            self._dirty.set()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._send_later, name="poplin-recorder", daemon=True)
                self._thread.start()
        return number

    def give_up(self, key: str, number: int, told: str) -> None:
        """This rank gave up a collective: a rank that comes late finds nobody, and reads why."""
        self._latest[f"{key}/gave_up"] = (number, told)
        self.flush()

    def leave(self) -> None:
        """This rank has closed its Fabric, and comes to no further collective."""
        self._latest["left"] = (0, "left")
        self.flush()
        self.close()

    def flush(self) -> None:
        """Send what has not been sent."""
        with self._sending:
            self._sent = time.monotonic()
            if self.store is None:
                return
            # If the host of the store is gone, the collective itself will tell.
            with contextlib.suppress(RuntimeError):
                for key, record in dict(self._latest).items():  # the copy is atomic: `begin` takes no lock
                    if self._flushed.get(key) is not record:
                        self.store.set(f"{key}/{self.rank}", f"{record[0]} {record[1]}")
                        self._flushed[key] = record

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._dirty.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1)

    def _send_later(self) -> None:
        while not self._closed.is_set():
            self._dirty.wait()
            self._closed.wait(INTERVAL)
            self._dirty.clear()
            if not self._closed.is_set():
                self.flush()

    # --- what the others did. Each raises RuntimeError if the store is gone.

    def read(self, key: str, rank: int) -> Record:
        """What ``rank`` has left about the group ``key``."""
        number, _, what = self._get(key, rank).partition(" ")
        return Record(int(number or 0), what)

    def gave_up(self, key: str, rank: int) -> Record:
        """Which collective ``rank`` gave up last in the group ``key``, and what it said."""
        number, _, told = self._get(f"{key}/gave_up", rank).partition(" ")
        return Record(int(number or 0), told)

    def has_left(self, rank: int) -> bool:
        """Whether ``rank`` has closed its Fabric."""
        return bool(self._get("left", rank))

    def _get(self, key: str, rank: int) -> str:
        if self.store is None or not self.store.check([f"{key}/{rank}"]):
            return ""
        text: bytes = self.store.get(f"{key}/{rank}")
        return text.decode(errors="replace")


_open: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _close_all() -> None:
    """No thread may be inside torch while the interpreter is taken down."""
    for recorder in list(_open):
        if recorder.pid == os.getpid():  # a forked child has no such thread, and maybe its locks as they were taken
            recorder.close()


final.at_the_end(_close_all)
