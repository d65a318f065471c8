"""Processes for checks, forked from one that has imported torch already: a launch costs no import.

The process that runs the tests starts a server once (:class:`Server`), which imports torch and forks what it is asked
for. Nothing is set up in it: no thread runs, no device is touched, no plugin is loaded, so what is forked from it is as
good as new. Where a library must not be forked after an import, ``preload=False`` forks from a process without torch.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from poplin.errors import LaunchError

#: The module whose ``main(folder, rank)`` a rank runs. (By name: it is built on this one.)
_RANK = "poplin.testing.rank"
#: What the server imports before it forks.
PRELOADED = ("torch", "torch.distributed", "torch._dynamo", "numpy", "poplin.fabric", _RANK)
#: Seconds that processes of a rank have to end by themselves once the rank has ended.
_SETTLE_SECONDS = 5.0


class Ended(NamedTuple):
    """How the ranks of one launch ended."""

    #: Exit codes by rank, negative for a signal.
    codes: list[int]
    #: The command lines of processes that were left, and then killed.
    left: list[str]
    #: Whether the time limit ended it.
    timed_out: bool


class Server:
    """A process that forks ranks on request; one for each process that runs tests, ended with it.

    Args:
        preload: whether it imports torch.
    """

    _servers: dict[tuple[int, bool], Server] = {}  # noqa: RUF012 - one for each process and kind

    def __init__(self, preload: bool) -> None:
        if not hasattr(os, "fork"):
            raise LaunchError("The checks fork their processes, which this system can't: run them on Linux or macOS.")
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "poplin.testing.warm", str(int(preload))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": path,
                "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS: a fork needs no exec after it
            },
            start_new_session=True,
        )
        atexit.register(self.stop)

    @classmethod
    def get(cls, preload: bool) -> Server:
        """The server of this process, started if there is none."""
        key = (os.getpid(), preload)
        server = cls._servers.get(key)
        if server is None or server._process.poll() is not None:
            server = cls._servers[key] = Server(preload)
        return server

    def run(self, folder: Path, processes: int, environ: dict[str, str], limit: float, grace: float = 6) -> Ended:
        """Fork ranks, wait for their end, and kill what they leave.

        Args:
            folder: holds ``orders.json`` for the ranks; their output goes there.
            processes: how many ranks.
            environ: their whole environment.
            limit: seconds after which all are killed.
            grace: seconds that the others have once one has ended with an error.

        Raises:
            LaunchError: the server has died.
        """
        request = {
            "folder": str(folder),
            "processes": processes,
            "environ": environ,
            "path": [entry or os.getcwd() for entry in sys.path],
            "cwd": os.getcwd(),
            "limit": limit,
            "grace": grace,
        }
        server = self._process
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(json.dumps(request).encode() + b"\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        except BaseException:
            self.stop()  # it may be in the middle of a launch
            raise
        if not answer:
            self.stop()
            raise LaunchError(f"The process that forks the ranks of checks has died ({server.poll()}); see its output.")
        return Ended(**json.loads(answer))

    def stop(self) -> None:
        """End it, and whatever it has forked."""
        process = self._process
        if process.poll() is None:
            process.terminate()
        if process.stdin is not None and not process.stdin.closed:
            try:
                process.stdin.close()
            except OSError:
                pass
        try:
            process.wait(_SETTLE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        atexit.unregister(self.stop)


def serve(preload: bool) -> None:
    """Answer requests until nobody can ask any more."""
    signal.signal(signal.SIGTERM, _end)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    for name in PRELOADED if preload else ():
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_launch(json.loads(line))._asdict()), file=answers, flush=True)


class _Ending:
    """Whether this process was told to end."""

    told = False
    #: Whether it waits for ranks, and will end them first.
    waiting = False


def _end(*about: object) -> None:
    if _Ending.told:
        return
    _Ending.told = True
    if not _Ending.waiting:
        sys.exit(0)


def _launch(request: dict[str, Any]) -> Ended:
    pids: list[int] = []
    for rank in range(request["processes"]):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, request)
        pids.append(pid)
    _Ending.waiting = True
    codes, timed_out = _wait(pids, request["limit"], request["grace"])
    _Ending.waiting = False
    left = _settled(pids)
    described = [_command_of(pid) for pid in left]
    for pid in left:
        _kill(pid)
    return Ended([codes[pid] for pid in pids], described, timed_out)


def _wait(pids: list[int], limit: float, grace: float) -> tuple[dict[int, int], bool]:
    """Wait for ranks; once one has failed, the others have ``grace`` seconds left."""
    asking = os.getppid()
    codes: dict[int, int] = {}
    deadline, killed = time.monotonic() + limit, False
    while len(codes) < len(pids):
        for pid in pids:
            if pid in codes:
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
                if codes[pid]:
                    deadline = min(deadline, time.monotonic() + grace)
        if not killed and (time.monotonic() > deadline or os.getppid() != asking or _Ending.told):
            killed = True
            for pid in (*pids, *_members(pids)):
                _kill(pid)
        time.sleep(0.002)
    if os.getppid() != asking or _Ending.told:
        sys.exit(1)
    return codes, killed


def _settled(sessions: list[int]) -> list[int]:
    """What still runs in the sessions of ranks that have ended, after a while."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (left := _members(sessions)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _members(sessions: list[int]) -> list[int]:
    """The living processes of these sessions, leaders aside. (On Linux; elsewhere none is known.)"""
    found = []
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit() and int(entry.name) not in sessions:
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(session) in sessions and state not in "ZX":
                found.append(int(entry.name))
    return found


def _command_of(pid: int) -> str:
    try:
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
    except OSError:
        return str(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def _be_rank(rank: int, request: dict[str, Any]) -> NoReturn:
    """What a forked process does: it never returns."""
    code = 70
    try:
        os.setsid()  # its own session: what it starts is found by it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        folder = Path(request["folder"])
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["environ"])
        if "WORLD_SIZE" in os.environ:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        os.chdir(request["cwd"])
        sys.path[:] = request["path"]
        faulthandler.enable()
        code = importlib.import_module(_RANK).main(folder, rank)
    except BaseException as error:
        import traceback

        traceback.print_exception(error)
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 70
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    serve(bool(int(sys.argv[1])))
