"""The script that launchers launch in the checks: ``launched.py CASE SUITE FOLDER``.

Rank 0's process prints ``RESULT`` and JSON; every rank leaves a file in the folder. Some launchers run this script in
each rank, others call ``work`` in new processes: both come by here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import poplin
from poplin import Fabric, registry
from poplin.strategies import ParallelStrategy
from poplin.testing.loading import load_suite

LARGE = 3_000_000


class OfTheScript(ParallelStrategy):
    """What the script registers."""


def work(fabric: Any, case: str, folder: str, function: Any = None) -> Any:
    """What each rank does."""
    rank, size = fabric.global_rank, fabric.world_size
    total = fabric.all_reduce(rank + 1, reduce_op="sum")
    told = {"rank": rank, "size": size, "total": int(total), "pid": os.getpid()}
    if case == "registration":
        told["registered"] = registry.find("strategies", "of_the_script").target_class().__name__
    _tell(folder, rank, told)
    try:
        return _end(fabric, case, rank, folder, function)
    finally:
        (Path(folder) / f"finally{rank}").touch()


def _end(fabric: Any, case: str, rank: int, folder: str, function: Any) -> Any:
    if case == "raises":
        if rank == 1:
            raise LookupError("rank 1 fails on purpose")
        time.sleep(60)
    if case == "killed":
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if case == "waits":
        (Path(folder) / f"waits{rank}").touch()
        time.sleep(60)
    if case == "closure":
        return function(rank)
    return "x" * LARGE if case == "large" else f"result of rank {rank}"


def _tell(folder: str, rank: int, told: dict[str, Any]) -> None:
    partial = Path(folder) / f"rank{rank}.partial"
    partial.write_text(json.dumps(told))
    partial.replace(Path(folder) / f"rank{rank}.json")


def _launch(case: str, suite: str, folder: str) -> dict[str, Any]:
    """Launch ``work`` in two ranks, and tell what came of it, here."""
    launcher = load_suite(json.loads(suite))().create()
    poplin.register("strategies", "of_the_script", OfTheScript)
    before = _state()
    outer = 7
    function = (lambda rank: rank + outer) if case == "closure" else None
    told: dict[str, Any] = {"result": None, "error": None, "bases": [], "text": ""}
    fabric = Fabric(accelerator="cpu", strategy=ParallelStrategy(timeout=20), devices=2, plugins=[launcher])
    with fabric:
        try:
            result = fabric.launch(work, case, folder, function)
            told["result"] = len(result) if case == "large" else result
        except Exception as error:
            if not launcher.needs_function:
                raise  # this process is a rank, and its exit code counts
            told["error"], told["text"] = type(error).__name__, str(error)
            told["bases"] = [base.__name__ for base in type(error).__mro__]
    told["changed"] = [name for name, value in _state().items() if before[name] != value]
    return told


def _state() -> dict[str, Any]:
    names = [one for one in signal.Signals if one in signal.valid_signals()]
    return {
        "environment variables": sorted(name for name in os.environ if not name.startswith(("KINETO", "TORCH"))),
        "signal handlers": [repr(signal.getsignal(one)) for one in names],
    }


def main() -> None:
    """Run the cases that the arguments name, each in a folder of its own."""
    cases, suite, folder = sys.argv[1:4]
    for case in cases.split(","):
        place = Path(folder) / case
        place.mkdir(exist_ok=True)
        told = _launch(case, suite, str(place))
        (place / f"told{os.getpid()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
