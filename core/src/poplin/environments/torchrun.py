"""The built-in environment for processes that torchrun started."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from poplin.environments.environment import ClusterEnvironment
from poplin.errors import ContradictionError, LaunchError
from poplin.utilities.excepthook import ExceptionHook

if TYPE_CHECKING:
    from poplin.selection import Selection


class TorchrunEnvironment(ClusterEnvironment):
    """Processes that ``torchrun`` (and so ``poplin run``) started; it sets the ranks.

    (Lightning calls this one ``TorchElasticEnvironment``.)
    """

    priority = 100  # the innermost launcher wins: torchrun inside a job step rather than the job

    def __init__(self) -> None:
        self._hook: ExceptionHook | None = None

    def bind(self, selection: Selection) -> None:
        """From now on torchrun is told of the exception that ends this rank, so that it can name the first one."""
        super().bind(selection)
        _end_with_launcher()
        if self._hook is None and os.environ.get("TORCHELASTIC_ERROR_FILE"):
            self._hook = ExceptionHook(_on_exception)

    def teardown(self) -> None:
        """Give signals and the exception hook back."""
        super().teardown()
        if self._hook is not None and sys.exc_info()[1] is None:  # an exception on its way out comes to the hook yet
            self._hook.remove()
            self._hook = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_hook": None}

    @staticmethod
    def detect() -> bool:
        """Whether torchrun's variables are set."""
        return all(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE"))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare with the processes that torchrun made.

        Raises:
            ContradictionError: it made another number of them, on all nodes or on this one.
        """
        wanted, has = num_devices * num_nodes, self.world_size()
        if wanted != has:
            raise ContradictionError(
                f"{num_devices} device(s) on {num_nodes} node(s) were asked for, which makes {wanted} process(es), and "
                f"torchrun has started {has}. Give torchrun --nproc-per-node={num_devices} and --nnodes={num_nodes}, "
                f"or ask for what it has started: {self._suggestion()}."
            )
        local = self.local_world_size()
        if local is not None and local != num_devices:
            raise ContradictionError(
                f"{num_devices} device(s) on each of {num_nodes} node(s) were asked for, and torchrun has started "
                f"{local} process(es) on this node. Ask for what it has started: {self._suggestion()}."
            )

    def _suggestion(self) -> str:
        local, has = self.local_world_size() or 1, self.world_size()
        return f"devices={local}, num_nodes={max(1, has // local)}"

    @property
    def creates_processes_externally(self) -> bool:
        """True."""
        return True

    @property
    def main_address(self) -> str:
        """``MASTER_ADDR``."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """``MASTER_PORT``."""
        return _number("MASTER_PORT", 29500)

    def world_size(self) -> int:
        return _number("WORLD_SIZE", 1)

    def set_world_size(self, size: int) -> None:
        """Nothing: torchrun fixes it."""

    def global_rank(self) -> int:
        return _number("RANK", 0)

    def set_global_rank(self, rank: int) -> None:
        """Nothing: torchrun fixes it."""

    def local_rank(self) -> int:
        return _number("LOCAL_RANK", 0)

    def node_rank(self) -> int:
        return _number("GROUP_RANK", 0)

    def local_world_size(self) -> int | None:
        return _number("LOCAL_WORLD_SIZE", 0) or None


def _on_exception(error: BaseException, hand_on: Callable[[], None]) -> None:
    if isinstance(error, Exception):
        _leave_word(error)
    hand_on()


def _leave_word(error: BaseException) -> None:
    """Write the file in which torchrun looks for the reason of a rank's end, in its format."""
    content = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(error)),
                "timestamp": str(int(time.time())),
            },
        }
    }
    try:
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump(content, file)
    except (OSError, KeyError) as failure:  # the error itself is printed in any case
        print(f"poplin: torchrun could not be told of the error: {failure}", file=sys.stderr)


_watching = False


def _end_with_launcher() -> None:
    """Where `poplin run` is torchrun: if it is killed, so is this process. (A plain torchrun leaves orphans.)"""
    global _watching
    if not _watching and os.environ.get("POPLIN_LAUNCHER_PID") == str(os.getppid()):
        from poplin.launchers.guest import watch_parent

        _watching = True
        watch_parent()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise LaunchError(
            f"The environment variable {name}={text} is no number; torchrun should have set it."
        ) from None
