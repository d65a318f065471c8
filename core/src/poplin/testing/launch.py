"""Launch the checks of a suite that need processes of their own, and collect what came of each."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from poplin.testing.checks import Requirement
from poplin.testing.outcomes import Status
from poplin.testing.rank import told
from poplin.testing.warm import Ended, Server

if TYPE_CHECKING:
    from poplin.testing.compliance import Compliance

#: How much of a rank's output a message shows, in characters.
_OUTPUT_TAIL = 4000
#: Variables that would make a rank take itself for a part of another run.
_FOREIGN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")


class Result(NamedTuple):
    """What came of one check."""

    status: Status
    message: str = ""


def run_in_processes(suite: Compliance, checks: Sequence[Requirement], processes: int) -> dict[str, Result]:
    """Run checks in ``processes`` ranks; one that takes its ranks down costs none of the others.

    Args:
        suite: whose checks they are.
        checks: which.
        processes: how many ranks.

    Returns:
        method → what came of it.
    """
    results: dict[str, Result] = {}
    together = [one.method for one in checks if not one.alone]
    batches = [together, *([one.method] for one in checks if one.alone)]
    while batches:
        batch = batches.pop(0)
        if not batch:
            continue
        done = _launch(suite, batch, processes)
        results |= done
        rest = [method for method in batch if method not in done]
        if len(rest) < len(batch):
            batches.insert(0, rest)
        else:  # not even one has begun
            results |= dict.fromkeys(rest, Result("failed", "  found:    its processes did not start"))
    return results


def describe(suite: type[Compliance]) -> dict[str, Any]:
    """Where another process finds the class of a suite."""
    attributes = dict(vars(suite).get("_given", {}))
    base = suite.__mro__[1] if attributes else suite
    module = sys.modules[base.__module__]
    return {
        "module": base.__module__,
        "file": getattr(module, "__file__", None) or inspect.getfile(base),
        "qualname": base.__qualname__,
        "attributes": attributes,
    }


def _launch(suite: Compliance, methods: list[str], processes: int) -> dict[str, Result]:
    folder = Path(tempfile.mkdtemp(prefix="poplin-checks-"))
    try:
        orders = {
            "suite": describe(type(suite)),
            "checks": methods,
            "processes": processes,
            "limit": suite.limit,
        }
        (folder / "orders.json").write_text(json.dumps(orders))
        server = Server.get(suite.preload)
        ended = server.run(folder, processes, _environ(suite, processes), suite.limit * (len(methods) + 1))
        return _collect(folder, methods, ended)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environ(suite: Compliance, processes: int) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    environ |= {"OMP_NUM_THREADS": "1"} | dict(suite.env)
    if processes > 1 or suite.ranks_exist:
        environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "poplin-checks",
        }
    return environ


def _collect(folder: Path, methods: list[str], ended: Ended) -> dict[str, Result]:
    """What came of the checks that were begun; the last of them may have taken its ranks down."""
    ranks = range(len(ended.codes))
    lines = [{line["check"]: line for line in told(folder, rank)} for rank in ranks]  # the last line of a check counts
    results = {}
    for method in methods:
        of_ranks = [lines[rank].get(method) for rank in ranks]
        if all(line is None for line in of_ranks):
            break
        results[method] = _verdict(folder, of_ranks, ended)
    if not results and any(ended.codes):
        message = "  expected: its processes start\n  found:    " + _output(
            folder, [r for r in ranks if ended.codes[r]]
        )
        return dict.fromkeys(methods, Result("failed", message))
    if ended.left and results:
        last = next(reversed(results))
        message = f"  expected: no process is left\n  found:    {', '.join(ended.left)}"
        results[last] = Result("failed", message) if results[last].status != "failed" else results[last]
    return results


def _verdict(folder: Path, of_ranks: list[dict[str, Any] | None], ended: Ended) -> Result:
    told_lines = [(rank, line) for rank, line in enumerate(of_ranks) if line and line["status"] != "begun"]
    failed = [(line["kind"] != "expectation", line["at"], rank, line) for rank, line in told_lines if _failed(line)]
    silent = [rank for rank, line in enumerate(of_ranks) if line is None or line["status"] == "begun"]
    size = len(of_ranks)
    if failed:
        _, _, rank, line = min(failed, key=lambda one: one[:3])
        where = f" (rank {rank} of {size})" if size > 1 else ""
        return Result("failed", line["message"] + where)
    if silent:
        how = ", ".join(f"rank {rank} {_end(ended.codes[rank])}" for rank in silent)
        return Result(
            "failed",
            f"  expected: every rank comes to the end of the check\n  found:    {how}{_output(folder, silent)}",
        )
    reasons = [line["message"] for _, line in told_lines if line["status"] == "not claimed"]
    return Result("not claimed", reasons[0]) if reasons else Result("passed")


def _failed(line: dict[str, Any]) -> bool:
    return bool(line["status"] == "failed")


def _end(code: int) -> str:
    import signal

    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"did not come to it in time, or ended ({code})" if code else "ended without a word"


def _output(folder: Path, ranks: list[int]) -> str:
    text = ""
    for rank in ranks:
        path = folder / f"rank{rank}.log"
        output = path.read_text(errors="replace")[-_OUTPUT_TAIL:].strip() if path.exists() else ""
        text += f"\n----- output of rank {rank}\n{output or '(none)'}"
    return text
