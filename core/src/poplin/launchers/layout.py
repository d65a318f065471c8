"""How a selection lays its processes out: places, threads, and what the trace says about it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from poplin.environments.place import Place

if TYPE_CHECKING:
    from poplin.selection import Selection

#: Marks every process of one launch, and what they start in turn.
MARK_VARIABLE = "POPLIN_LAUNCH"
_THREADS_VARIABLE = "OMP_NUM_THREADS"


def needs_port(selection: Selection) -> bool:
    """Whether a free port must be chosen: all processes are on this node, and nobody has set one."""
    return selection.num_nodes == 1 and not os.environ.get("MASTER_PORT", "").strip()


def first_place(selection: Selection, port: int | None) -> Place:
    """The place of this node's first process.

    Args:
        selection: the run.
        port: a free port that is held for it; None asks the environment.

    Raises:
        LaunchError: several nodes, and no port set.
    """
    environment = selection.environment
    return Place(
        local_rank=0,
        local_size=len(selection.devices),
        node_rank=environment.node_rank(),
        num_nodes=selection.num_nodes,
        address="127.0.0.1" if port is not None else environment.main_address,
        port=port if port is not None else environment.main_port,
    )


def threads(selection: Selection) -> tuple[int | None, dict[str, str | None]]:
    """How many CPU threads each process gets, so that together they have as many as there are cores.

    Returns:
        The number, and the environment variable that says so; None and nothing where the user has set it.
    """
    size = len(selection.devices)
    if os.environ.get(_THREADS_VARIABLE) or size == 1:
        return None, {}
    count = max(1, _cores() // size)
    note(selection, f"{count} CPU thread(s) each", f"{_cores()} core(s) for {size} processes", subject="threads")
    return count, {_THREADS_VARIABLE: str(count)}


def accelerator_variables(selection: Selection) -> dict[str, str | None]:
    """What the accelerator wants in the environment of every process of this launch."""
    size = len(selection.devices)
    if size * selection.num_nodes == 1:
        return {}
    found = dict(selection.accelerator.launch_variables(size, selection.num_nodes))
    if found:
        note(selection, ", ".join(sorted(found)), f"the accelerator {selection.accelerator.name()!r} needs them")
    return {**found}


def forked_threads(count: int | None) -> int | None:
    """The number of threads for a forked process: one where this process has threads, which do not survive the fork."""
    return 1 if _has_native_threads() else count


def note(selection: Selection, choice: str, reason: str, subject: str = "launch") -> None:
    """Record a choice of a launcher's in the trace."""
    selection.trace.note(subject, choice, reason)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _has_native_threads() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        return threading.active_count() > 1
