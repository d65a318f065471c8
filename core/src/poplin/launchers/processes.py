"""What is asked of the operating system about processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int = signal.SIGTERM) -> None:
    """Ask the kernel for ``signum`` when the thread that started this process ends. Linux only; elsewhere nothing."""
    if sys.platform.startswith("linux"):
        try:
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        except (OSError, AttributeError):  # another C library: the watching thread does it, a second later
            pass


def exec_with_parent(command: list[str]) -> list[str]:
    """``command``, started so that it dies with its parent, from its first instruction on.

    A small program asks the kernel for it and then becomes the command, which keeps the process id. (A function between
    fork and exec would do the same, and is not safe in a process that has threads.)
    """
    if not sys.platform.startswith("linux"):
        return command
    code = (
        f"import ctypes,os,sys;ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG},{int(signal.SIGTERM)},0,0,0);"
        f"os.getppid()=={os.getpid()} or os._exit(1);os.execv(sys.argv[1],sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", code, *command]


def descendants(pid: int) -> list[int]:
    """The processes that ``pid`` has started, theirs too. Empty where the system doesn't tell."""
    children: dict[int, list[int]] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if entry.isdigit() and (parent := _parent_of(entry)) is not None:
            children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    queue = list(children.get(pid, ()))
    while queue:
        child = queue.pop()
        found.append(child)
        queue += children.get(child, ())
    return found


def marked(variable: str, value: str) -> list[int]:
    """The processes that were started with this environment variable. Empty where the system doesn't tell."""
    wanted = f"{variable}={value}".encode()
    found = []
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:  # gone, or somebody else's
                pass
    return found


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def exists(pid: int) -> bool:
    """Whether there is a process of this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _parent_of(entry: str) -> int | None:
    try:
        with open(f"/proc/{entry}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
