"""What runs in a rank of a compliance suite: its checks, one after the other, each in step with the other ranks."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from poplin.testing.calls import answer
from poplin.testing.case import Case
from poplin.testing.checks import Requirement, requirements
from poplin.testing.loading import load_suite
from poplin.testing.outcomes import ComplianceError, NotClaimed
from poplin.testing.ranks import free_port
from poplin.utilities.unwinding import let_through


def main(folder: Path, rank: int) -> int:
    """Run the checks that ``orders.json`` in ``folder`` lists, and leave a line about each.

    Args:
        folder: of the launch.
        rank: of this process.

    Returns:
        The exit code.
    """
    orders = json.loads((folder / "orders.json").read_text())
    if "call" in orders:
        return answer(folder, rank, orders["call"])
    suite = load_suite(orders["suite"])()
    wanted = {one.method: one for one in requirements(type(suite))}
    post = _Post(folder, rank, orders["processes"])
    (folder / f"prepare{rank}").mkdir()
    os.chdir(folder / f"prepare{rank}")
    suite.prepare()
    for name in orders["checks"]:
        post.write({"check": name, "status": "begun"})
        faulthandler.dump_traceback_later(orders["limit"], exit=True)
        if "WORLD_SIZE" in os.environ:
            os.environ["MASTER_PORT"] = post.agreed(f"{name}.port", lambda: str(free_port()))
        passed = {"check": name, "status": "passed", "kind": "", "message": ""}
        case = Case(rank, orders["processes"], folder / "work" / name, functools.partial(post.write, passed), post.meet)
        place = case.folder / "current"
        place.mkdir(parents=True, exist_ok=True)
        os.chdir(place)  # what writes below the current folder litters nothing
        post.write({"check": name, **run_check(suite, wanted[name], case), "at": time.time()})
        post.wait_for_others(name)
        faulthandler.cancel_dump_traceback_later()
        if post.failed(name):
            break  # what it has left may be anything: the rest gets other processes
    return 0


def run_check(suite: Any, about: Requirement, case: Case) -> dict[str, str]:
    """Run one check, and tell what came of it: ``status``, ``message``, and ``kind``: expectation, error or reason."""
    try:
        try:
            about.body(suite, case)
        finally:
            case.close()
    except NotClaimed as reason:
        return {"status": "not claimed", "kind": "reason", "message": str(reason)}
    except ComplianceError as error:
        return {"status": "failed", "kind": "expectation", "message": str(error)}
    except BaseException as error:
        let_through(error)
        told = "".join(traceback.format_exception(error)).strip()
        return {
            "status": "failed",
            "kind": "error",
            "message": f"  expected: no error\n  found:    {type(error).__name__}: {error}\n{told}",
        }
    return {"status": "passed", "kind": "", "message": ""}


class _Post:
    """Files by which the ranks of a launch keep in step, whatever becomes of their process group."""

    def __init__(self, folder: Path, rank: int, processes: int) -> None:
        self._folder = folder
        self._rank = rank
        self._processes = processes

    def write(self, line: dict[str, Any]) -> None:
        with open(self._folder / f"rank{self._rank}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def wait_for_others(self, check: str) -> None:
        """Wait until every rank has told what came of a check."""
        for rank in range(self._processes):
            while not self._has_told(check, rank):
                time.sleep(0.003)

    def meet(self, check: str, number: int) -> None:
        """Wait until every rank has come here, or has ended the check."""
        name = f"{check}.met{number}."
        (self._folder / f"{name}{self._rank}").touch()
        for rank in range(self._processes):
            while not (self._folder / f"{name}{rank}").exists() and not self._has_told(check, rank):
                time.sleep(0.003)

    def failed(self, check: str) -> bool:
        """Whether a check has failed on any rank."""
        lines = (line for rank in range(self._processes) for line in told(self._folder, rank))
        return any(line["check"] == check and line["status"] == "failed" for line in lines)

    def _has_told(self, check: str, rank: int) -> bool:
        return any(line["check"] == check and line["status"] != "begun" for line in told(self._folder, rank))

    def agreed(self, name: str, make: Any) -> str:
        """What rank 0 makes, on every rank."""
        path = self._folder / name
        if self._rank == 0:
            partial = path.with_suffix(".partial")
            partial.write_text(make())
            partial.replace(path)
        while not path.exists():
            time.sleep(0.002)
        return path.read_text()


def told(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank has written so far, a line for each check that it began and each that it ended."""
    path = folder / f"rank{rank}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
