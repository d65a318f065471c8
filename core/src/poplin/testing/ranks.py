"""Run a script in several real processes, as ``torchrun`` would, and collect what each of them reports.

A test writes one script that checks many things, because a process costs seconds (most of them ``import torch``)::

    results = run_ranks(
        '''
        from poplin.testing.ranks import report

        report({"answer": 42})
        ''',
        world_size=2,
    )
    assert [result["answer"] for result in results] == [42, 42]
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: The environment variable that tells a rank's script where its report goes.
REPORT_VARIABLE = "POPLIN_RANK_REPORT"
#: How many characters of each rank's output a failure shows.
OUTPUT_TAIL = 6000
#: Variables of the calling process that would make a rank take itself for a part of another run.
_FOREIGN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")


class RanksFailedError(AssertionError):
    """A rank failed, was killed, took too long, or reported nothing. The message has the output of the ranks."""


def report(result: Any) -> None:
    """Hand ``result`` to the caller of :func:`run_ranks`. Called by the script; the last call counts.

    Args:
        result: anything that JSON can hold.
    """
    path = Path(os.environ[REPORT_VARIABLE])
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.replace(path)


def run_ranks(
    source: str | Path,
    world_size: int = 2,
    args: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    timeout: float = 90,
    *,
    grace: float = 15,
    expect_failure: bool = False,
) -> list[Any]:
    """Run a script in ``world_size`` processes of one node and return what each reported.

    Args:
        source: the text of the script (indentation is removed), or the path of one.
        world_size: number of processes.
        args: arguments of the script.
        env: environment variables on top of this process's; None as a value removes one.
        timeout: seconds after which every process is killed, its children included.
        grace: seconds that the others get to end by themselves once one rank has failed.
        expect_failure: a rank may end with an error, a signal or no report: its result is then
            ``{"exit": code, "output": text, "report": what it reported or None}``, for every rank.

    Returns:
        Each rank's report, by rank.

    Raises:
        RanksFailedError: a rank failed; its output is in the message, first that of the rank that failed first.
    """
    with tempfile.TemporaryDirectory(prefix="poplin-ranks-") as folder:
        run = _Run(Path(folder), world_size, env)
        try:
            run.start(_script(source, Path(folder)), args)
            run.wait(timeout, grace)
        finally:
            run.kill()
        return run.raw_results() if expect_failure else run.results()


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _script(source: str | Path, folder: Path) -> Path:
    if isinstance(source, Path) or (source.endswith(".py") and "\n" not in source):
        return Path(source)
    path = folder / "script.py"
    path.write_text(textwrap.dedent(source))
    return path


class _Run:
    """The processes of one call."""

    def __init__(self, folder: Path, world_size: int, env: Mapping[str, str | None] | None) -> None:
        self.folder = folder
        self.world_size = world_size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.failed_first: int | None = None
        self.timed_out: float | None = None
        self.base = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
        root = str(Path(__file__).resolve().parents[2])
        self.base["PYTHONPATH"] = os.pathsep.join(filter(None, (root, self.base.get("PYTHONPATH"))))
        self.base |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": f"run-ranks-{os.getpid()}",
            "OMP_NUM_THREADS": "1",
        }
        for key, value in (env or {}).items():
            if value is None:
                self.base.pop(key, None)
            else:
                self.base[key] = value

    def start(self, script: Path, args: Sequence[str]) -> None:
        for rank in range(self.world_size):
            env = {
                **self.base,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                REPORT_VARIABLE: str(self.folder / f"rank{rank}.json"),
            }
            with open(self.folder / f"rank{rank}.log", "wb") as log:  # a file, so that a full pipe blocks nobody
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(script), *args],
                        env=env,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # a process group of its own, so that its children die with it
                    )
                )

    def wait(self, timeout: float, grace: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            codes = [process.poll() for process in self.processes]
            if self.failed_first is None and any(codes):
                self.failed_first = next(rank for rank, code in enumerate(codes) if code)
                deadline = min(deadline, time.monotonic() + grace)
            if None not in codes:
                return
            if time.monotonic() > deadline:
                self.timed_out = timeout
                return
            time.sleep(0.02)

    def kill(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # the whole group: a rank's own children may outlive it
            except (ProcessLookupError, PermissionError):
                pass
        for process in self.processes:
            process.wait()

    def report_of(self, rank: int) -> Any:
        path = self.folder / f"rank{rank}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def output_of(self, rank: int) -> str:
        return (self.folder / f"rank{rank}.log").read_text(errors="replace")

    def raw_results(self) -> list[dict[str, Any]]:
        return [
            {"exit": process.returncode, "output": self.output_of(rank), "report": self.report_of(rank)}
            for rank, process in enumerate(self.processes)
        ]

    def results(self) -> list[Any]:
        failures = []
        for rank, process in enumerate(self.processes):
            code = process.returncode
            if code < 0:
                late = self.timed_out is not None and code == -signal.SIGKILL
                failures.append((rank, f"was killed by {signal.Signals(-code).name}" + (" (too slow)" if late else "")))
            elif code:
                failures.append((rank, f"ended with exit code {code}"))
            elif not (self.folder / f"rank{rank}.json").exists():
                failures.append((rank, "ended without a call of report()"))
        if failures:
            raise RanksFailedError(self._message(failures))
        return [self.report_of(rank) for rank in range(self.world_size)]

    def _message(self, failures: list[tuple[int, str]]) -> str:
        lines = [f"rank {rank} of {self.world_size} {what}" for rank, what in failures]
        if self.timed_out is not None:
            lines.append(f"(the time limit is {self.timed_out:g} s; after a first failure less)")
        order = sorted(range(self.world_size), key=lambda rank: (rank != self.failed_first, rank))
        for rank in order:
            lines += [f"----- output of rank {rank}", self.output_of(rank)[-OUTPUT_TAIL:].rstrip() or "(none)"]
        return "\n".join(lines)
