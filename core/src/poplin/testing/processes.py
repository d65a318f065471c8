"""Run a program in a process of its own, disturb it, and see what it leaves behind.

Every process that the program starts is known by a mark in its environment, so that orphans are found, wherever they
hang. (On Linux, by ``/proc``.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

_MARK = "POPLIN_TEST_PROGRAM"


class Program:
    """A Python program, running; a context manager that kills whatever is left of it.

    Its processes share one output. ``print(..., flush=True)`` writes a line there at once and as a whole. For that,
    PYTHONUNBUFFERED is removed: under it each word is a write of its own, and the words of two processes mix.

    It heeds Ctrl-C, even where this process ignores SIGINT, as what a shell script starts in the background does.

    Args:
        source: the program's text (indentation is removed), the path of a script, or a whole command.
        args: its arguments.
        env: environment variables on top of this process's; None as a value removes one.
        cwd: its working directory.
        stdin: what it reads.
    """

    def __init__(
        self,
        source: str | Path | Sequence[str],
        args: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="poplin-program-")
        self._output = Path(self._folder.name) / "output.txt"
        self.mark = uuid.uuid4().hex
        environ = {**os.environ, "OMP_NUM_THREADS": "1", _MARK: self.mark}
        environ.pop("PYTHONUNBUFFERED", None)
        for name, value in (env or {}).items():
            environ.pop(name, None) if value is None else environ.__setitem__(name, value)
        with open(self._output, "wb") as output, _interrupts_heeded():
            self.process = subprocess.Popen(
                [*self._command(source), *args],
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own: a signal to the group is not one to the tests
            )
        if stdin is not None and self.process.stdin is not None:
            self.process.stdin.write(stdin.encode())
            self.process.stdin.close()

    def _command(self, source: str | Path | Sequence[str]) -> list[str]:
        if isinstance(source, Path):
            return [sys.executable, str(source)]
        if not isinstance(source, str):
            return list(source)
        script = Path(self._folder.name) / "program.py"
        script.write_text(textwrap.dedent(source))
        return [sys.executable, str(script)]

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in (self.process.pid, *self.left()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self._folder.cleanup()

    @property
    def output(self) -> str:
        """What it has printed so far, errors included."""
        return self._output.read_text(errors="replace")

    def wait_for(self, condition: Callable[[str], object], timeout: float = 60) -> str:
        """Wait until ``condition`` is true of the output, and return that.

        Raises:
            AssertionError: it doesn't become true in time, or the program ends before.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            if condition(self.output):
                return self.output
            if ended:
                raise AssertionError(f"the program ended ({self.process.returncode}) before its time:\n{self.output}")
            time.sleep(0.05)
        raise AssertionError(f"the program takes longer than {timeout:g} s:\n{self.output}")

    def send(self, signum: int, *, group: bool = False) -> None:
        """Send a signal to the program, or to its whole process group."""
        (os.killpg if group else os.kill)(self.process.pid, signum)

    def end(self, timeout: float = 20, patience: float = 10) -> int:
        """Wait for its end, and return its exit code (negative for a signal).

        Args:
            timeout: seconds until it must have ended.
            patience: seconds that the processes which it has started may live on after that.

        Raises:
            AssertionError: it doesn't end in time, or leaves processes.
        """
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program does not end within {timeout:g} s:\n{self.output}") from None
        deadline = time.monotonic() + patience
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            raise AssertionError(f"the program has left {[_describe(pid) for pid in left]}:\n{self.output}")
        return code

    def left(self) -> list[int]:
        """The processes that it has started and that live, zombies aside."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    pass
        return found


@contextmanager
def _interrupts_heeded() -> Iterator[None]:
    """What is started meanwhile heeds SIGINT: a process inherits that a signal is ignored, and no handler."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():  # others may set no handler
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _describe(pid: int) -> str:
    try:
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
    except OSError:
        return str(pid)
