"""Why a rank failed, told from process to process."""

from __future__ import annotations

import pickle
import re
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from poplin.errors import CollectiveError, WorkerError

#: What errors say that come of another rank's end.
_PEER_WORDS = re.compile(
    r"process ?group|connection (closed|reset|was lost)|broken pipe|socket|peer|gloo", re.IGNORECASE
)
#: Our own modules in which a rank waits for others.
_OWN_COLLECTIVES = tuple(
    f"/poplin/strategies/{name}.py"
    for name in ("communicator", "collectives", "broadcasting", "reductions", "first", "handles", "process_group")
)
#: Where the core's own modules are; a user's folder may be called poplin too.
_OWN_FOLDER = Path(__file__).parents[1].as_posix() + "/"
#: How much is shown of where a rank sits.
_STACK_ENTRIES = 8


@dataclass
class Failure:
    """One rank's end.

    Attributes:
        rank: global rank.
        what: one line for people: ``"ValueError: boom"``, ``"was killed by SIGKILL"``.
        traceback: of the exception; empty where there is none.
        exception: the exception itself, pickled, where that is possible.
        exit_code: of a ``sys.exit``, or of the process.
        is_exit: whether it ended by ``sys.exit``.
        is_consequence: whether it looks like a consequence of another rank's end.
        notes: what else there is to say.
    """

    rank: int
    what: str
    traceback: str = ""
    exception: bytes | None = None
    exit_code: Any = None
    is_exit: bool = False
    is_consequence: bool = False
    notes: list[str] = field(default_factory=list)

    def headline(self, world_size: int) -> str:
        """``"Rank 1 of 2 failed: ..."``."""
        text = self.what if self.what.startswith(("was ", "ended ")) else f"failed: {self.what}"
        return f"Rank {self.rank} of {world_size} {text}"

    def report(self, world_size: int) -> str:
        """Headline, notes and traceback."""
        lines = [self.headline(world_size), *self.notes]
        if self.traceback:
            lines.append(self.traceback.rstrip())
        return "\n".join(lines)

    def error(self, world_size: int) -> BaseException:
        """The exception to raise for it: the rank's own, its traceback in the chain, or a WorkerError that has it."""
        told = WorkerError(self.report(world_size))
        if self.is_exit:
            return _chained(SystemExit(self.exit_code), told)
        own = None
        if self.exception is not None:
            try:
                own = pickle.loads(self.exception)
            except Exception:  # its class can't be found here, or can't be rebuilt: the text must do
                own = None
        return _chained(own, told) if isinstance(own, BaseException) else told


def of_exception(error: BaseException, rank: int) -> Failure:
    """Describe an exception in the process where it was raised."""
    if isinstance(error, SystemExit):
        return Failure(rank, f"ended with sys.exit({error.code!r})", exit_code=_plain(error.code), is_exit=True)
    told = traceback.format_exception_only(error)  # str(error) itself may raise; notes come last
    summary = (told[-1] if isinstance(error, SyntaxError) else told[0]).strip().splitlines()
    return Failure(
        rank,
        summary[0] if summary else type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
        exception=_pickled(error),
        is_consequence=is_consequence(error),
    )


def of_exit_code(rank: int, code: int, is_imported: bool) -> Failure:
    """Describe a process that ended and left no word.

    Args:
        rank: global rank.
        code: exit code, negative for a signal.
        is_imported: whether it imports the script, and ended before it had begun with its work.
    """
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (was memory short? the kernel's out-of-memory killer leaves its name in dmesg)" if code == -9 else ""
        return Failure(rank, f"was killed by {name}{hint}", exit_code=code)
    text = f"ended with exit code {code} and left no exception"
    if is_imported:
        text += (
            ". It had not begun its work; what it printed stands above. A script that is imported by its workers needs "
            '`if __name__ == "__main__":` around the code that launches them'
        )
    else:
        text += " (what it printed stands above; os._exit and crashes in native code leave none)"
    return Failure(rank, text, exit_code=code)


def is_consequence(error: BaseException) -> bool:
    """Whether an error looks like what a rank gets when another one is gone."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CollectiveError) or type(seen).__name__.startswith("Dist"):
            return True
        if isinstance(seen, (RuntimeError, OSError)) and (
            _PEER_WORDS.search(str(seen)) or in_collective(seen.__traceback__)
        ):
            return True
        seen = seen.__cause__
    return False


def in_collective(trace: TracebackType | None) -> bool:
    """Whether the innermost frame of a traceback is in torch.distributed."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and _is_distributed(trace.tb_frame.f_code.co_filename)


def where_is(thread: int, at_the_end: bool = False) -> tuple[str, str | None]:
    """The stack of a thread of this process as text, and the collective that it is in, if it is in one.

    Args:
        thread: its id.
        at_the_end: the process was told to end and had all its grace for it. A backward pass that it still sits in is
            then taken for one that waits for gradients of other ranks; at other times it may be the rank's own work.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "", None
    stack = traceback.extract_stack(frame)
    inside = [entry for entry in stack if _is_distributed(entry.filename) and "_wrapper" not in entry.name]
    text = "".join(traceback.format_list(stack[-_STACK_ENTRIES:]))
    backward = [entry for entry in stack if _is_backward(entry.filename)] if at_the_end else []
    if not inside and not backward:
        return text, None
    callers = [entry for entry in stack if not _is_library(entry.filename)]
    place = f" ({callers[-1].filename}:{callers[-1].lineno})" if callers else ""
    name = "of the backward pass" if backward else inside[0].name
    return text, f"{name}{place}"


def _is_backward(filename: str) -> bool:
    return filename.replace("\\", "/").endswith("/torch/autograd/graph.py")


def _is_distributed(filename: str) -> bool:
    path = filename.replace("\\", "/")
    return "/torch/distributed/" in path or path.endswith(_OWN_COLLECTIVES)


def _is_library(filename: str) -> bool:
    path = filename.replace("\\", "/")
    parts = ("/site-packages/", "/lib/python", _OWN_FOLDER, "/src/poplin_")  # the last two where installed editable
    return path.startswith("<") or any(part in path for part in parts)


def _chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def _pickled(error: BaseException) -> bytes | None:
    """The exception as bytes, if what comes out again is the same kind of thing."""
    try:
        data = pickle.dumps(error)
        return data if type(pickle.loads(data)) is type(error) else None
    except Exception:
        return None


def _plain(code: Any) -> Any:
    return code if code is None or isinstance(code, (int, str)) else str(code)
