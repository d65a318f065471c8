"""Call a function in several real ranks, and get each rank's result or traceback.

In a test::

    def both_sum(start):
        strategy = start_strategy(ParallelStrategy(timeout=30))
        return strategy.all_reduce(torch.tensor(start + strategy.global_rank), reduce_op="sum").item()

    def test_both_sum():
        assert [told.value for told in call_in_ranks(both_sum, 1)] == [3, 3]

The ranks are forked from a process that has imported torch (``poplin.testing.warm``): a call costs some tenths of a
second. A whole script, each rank of it a fresh process, is run by ``run_ranks``.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from poplin.errors import ArgumentTypeError
from poplin.testing.loading import load_object
from poplin.testing.ranks import free_port
from poplin.testing.warm import Server
from poplin.utilities.unwinding import let_through

_FOREIGN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")


class RankResult(NamedTuple):
    """What became of a call in one rank."""

    #: What the function returned; None if it didn't.
    value: Any
    #: The traceback of what it raised; empty if it raised nothing.
    traceback: str
    #: Exit code of its process, negative for a signal.
    code: int
    #: What it printed.
    output: str


def call_in_ranks(
    function: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    env: Mapping[str, str] | None = None,
    timeout: float = 90,
    preload: bool = True,
) -> list[RankResult]:
    """Call ``function(*args)`` in each of ``world_size`` ranks, whose environment is as torchrun's.

    Args:
        function: defined at the top of a module.
        *args: for it; they must pickle, and so must what it returns.
        world_size: number of ranks.
        env: more environment variables.
        timeout: seconds after which all are killed; a rank that was has the code -9.
        preload: whether the ranks are forked from a process that has imported torch.

    Returns:
        What became of it in each rank, by rank. Nothing is raised for a rank that failed.

    Raises:
        ArgumentTypeError: the function is defined within another one, or is no function.
    """
    if not callable(function) or "<locals>" in getattr(function, "__qualname__", "<locals>"):
        raise ArgumentTypeError(
            f"{function!r} can't be called in other processes: give a function that is defined at the top of a module."
        )
    folder = Path(tempfile.mkdtemp(prefix="poplin-calls-"))
    try:
        module = sys.modules[function.__module__]
        where = {"module": function.__module__, "file": module.__file__, "qualname": function.__qualname__}
        (folder / "orders.json").write_text(json.dumps({"call": where}))
        (folder / "arguments").write_bytes(pickle.dumps(args))
        environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "poplin-calls",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        ended = Server.get(preload).run(folder, world_size, environ, timeout)
        return [_result(folder, rank, code) for rank, code in enumerate(ended.codes)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def answer(folder: Path, rank: int, where: Mapping[str, Any]) -> int:
    """What a rank of such a call does.

    Returns:
        Its exit code.
    """
    told: tuple[Any, str]
    try:
        function = load_object(where)
        told = (function(*pickle.loads((folder / "arguments").read_bytes())), "")
        pickled = pickle.dumps(told)
    except BaseException as error:
        let_through(error)
        told = (None, "".join(traceback.format_exception(error)))
        pickled = pickle.dumps(told)
    partial = folder / f"rank{rank}.partial"
    partial.write_bytes(pickled)
    partial.replace(folder / f"rank{rank}.result")
    return 1 if told[1] else 0


def _result(folder: Path, rank: int, code: int) -> RankResult:
    path, log = folder / f"rank{rank}.result", folder / f"rank{rank}.log"
    value, text = pickle.loads(path.read_bytes()) if path.exists() else (None, "")
    return RankResult(value, text, code, log.read_text(errors="replace") if log.exists() else "")
