"""Signals in processes that live for another one: dataloader workers."""

from __future__ import annotations

import os
import signal
import sys
import threading

#: What a scheduler, or a shell, sends to every process of a job at once.
_GROUP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1) if sys.platform != "win32" else ()
#: How often a worker looks whether its rank still lives, in seconds.
_WATCH_SECONDS = 1.0

_shielded_pid: int | None = None


def shield_loader_worker() -> None:
    """Keep this dataloader worker alive while its rank lives. Called first thing in the worker.

    A SIGTERM to the whole process group would kill the worker, and its rank would then fail in the loader before it
    could save. From here on such a signal counts only if the rank itself sent it (which is how a loader ends its
    workers); the worker ends by itself when its rank is gone. Again in the same process is a no-op.
    """
    global _shielded_pid
    if _shielded_pid == os.getpid() or not hasattr(signal, "sigtimedwait"):
        return
    _shielded_pid = os.getpid()
    # Blocked, the signals wait for the thread below, which is told who sent them; a handler would not be.
    signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    threading.Thread(target=_serve, args=(os.getppid(),), name="poplin-shield", daemon=True).start()


def _serve(parent: int) -> None:
    while True:
        received = signal.sigtimedwait(_GROUP_SIGNALS, _WATCH_SECONDS)
        if received is not None and received.si_signo == signal.SIGTERM and received.si_pid == parent:
            os._exit(0)
        if os.getppid() != parent:
            os._exit(1)
