"""Processes by ``torch_xla.launch``, one for each device of this machine."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poplin.errors import LaunchError, WorkerError
from poplin.launchers import Launcher
from poplin.registry import install_runtime_table, runtime_table
from poplin_tpu import runtime
from poplin_tpu.environment import XLAEnvironment


class XLALauncher(Launcher):
    """Runs a function in the processes of torch_xla, and returns rank 0's result.

    torch_xla can only run functions: ``fabric.launch(train)``. It spawns its processes, so the function and what it is
    given must pickle, and a script needs ``if __name__ == "__main__":``.
    """

    needs_function = True

    @property
    def is_interactive_compatible(self) -> bool:
        """Spawned processes can't find functions that were typed in."""
        return False

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``function(*args, **kwargs)`` on every device of this machine.

        Where torch_xla has started this process, it is called in this one.

        Returns:
            Rank 0's result, or this process's own where the processes existed.

        Raises:
            LaunchError: what the processes need can't be pickled.
            WorkerError: a process ended without a word.
            BaseException: the first failing rank's own exception.
        """
        if XLAEnvironment.detect():
            return function(*args, **kwargs)
        try:
            call = pickle.dumps((runtime_table(), function, args, kwargs))
        except Exception as error:
            raise LaunchError(
                f"What launch() got can't be sent to the processes that torch_xla spawns: "
                f"{type(error).__name__}: {error}. "
                "Move functions and classes to the top level of a module, and make what can't be pickled inside the "
                "function."
            ) from error
        with tempfile.TemporaryDirectory(prefix="poplin-xla-") as folder:
            try:
                runtime.xla().launch(run_in_process, args=(call, folder), start_method="spawn")
            except (
                Exception
            ) as error:  # that of a rank, in torch's words; ours is in the folder, if it had time to write
                raise _first_failure(Path(folder), error) from error
            return _result(Path(folder))


def run_in_process(index: int, call: bytes, folder: str) -> None:
    """What runs in each process; torch_xla finds it by its name.

    Args:
        index: of the process.
        call: the registrations, the function and its arguments, pickled.
        folder: takes what came of it.
    """
    report = Path(folder)
    try:
        table, function, args, kwargs = pickle.loads(call[:])
        install_runtime_table(table)
        result = function(*args, **kwargs)
    except BaseException as error:
        _write(report / f"error-{index}", _pickled_error(error))
        raise
    if runtime.xla("runtime").global_ordinal() == 0:
        try:
            _write(report / "result", pickle.dumps(result))
        except Exception as error:
            refused = LaunchError(
                f"The function that launch() ran returned a {type(result).__name__}, which can't be sent back from "
                f"rank 0: {type(error).__name__}: {error}. Return plain values, or tensors on the CPU."
            )
            _write(report / f"error-{index}", pickle.dumps(refused))
            raise refused from error


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.rename(path)


def _pickled_error(error: BaseException) -> bytes:
    try:
        content = pickle.dumps(error)
        pickle.loads(content)  # some errors pickle and can't be made again
    except Exception:
        return pickle.dumps(WorkerError(f"{type(error).__name__}: {error}"))
    return content


def _first_failure(folder: Path, error: Exception) -> BaseException:
    """The error of the rank that failed first; the others' follow from it."""
    reports = sorted(folder.glob("error-*"), key=lambda path: path.stat().st_mtime_ns)
    reports = [path for path in reports if not path.name.endswith(".tmp")]
    if not reports:
        return WorkerError(
            f"A process of torch_xla ended without an error of its own ({type(error).__name__}: {error}). Look at its "
            "output above; most likely it was killed."
        )
    failure: BaseException = pickle.loads(reports[0].read_bytes())
    failure.add_note(f"(raised in process {reports[0].name.partition('-')[2]} of this machine)")
    return failure


def _result(folder: Path) -> Any:
    path = folder / "result"
    return pickle.loads(path.read_bytes()) if path.exists() else None
