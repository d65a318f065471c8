"""What loggers that write into a folder have in common: ``root_dir/name/version``, the same on every rank."""

from __future__ import annotations

import contextlib
import os
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poplin.errors import ArgumentTypeError, ArgumentValueError, LoggerError
from poplin.loggers.logger import Logger
from poplin.rank_zero import rank_zero_only

if TYPE_CHECKING:
    from poplin.selection import Selection
    from poplin.strategies.strategy import Strategy

_VERSION = re.compile(r"version_(\d+)")


class FolderLogger(Logger):
    """Base of loggers whose runs are folders, ``root_dir/name/version_0`` and so on.

    A version that nobody gave is the next free one. Rank 0 takes it, by making its folder, so that no two runs have
    the same; the others learn it when the processes are up. A folder in which nothing was written is gone at the end.

    Args:
        root_dir: folder of all experiments.
        name: of the experiment; None or empty leaves this level out.
        version: a number, or any name for the folder; None takes the next number.
        prefix: stands before the name of each metric, with a ``-``.
    """

    #: What joins prefix and name of a metric.
    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        root_dir: str | os.PathLike[str] = ".",
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
    ) -> None:
        if not isinstance(root_dir, (str, os.PathLike)):
            raise ArgumentTypeError(f"root_dir is the path of a folder, and this is a {type(root_dir).__name__}.")
        if version is not None and (isinstance(version, bool) or not isinstance(version, (int, str))):
            raise ArgumentTypeError(f"version is a number or a name, and this is a {type(version).__name__}.")
        if isinstance(version, int) and version < 0:
            raise ArgumentValueError(f"version={version} is negative; the first one is 0.")
        self._root_dir = os.fspath(root_dir)
        # what a relative path means must not change when the script changes its folder
        self._base = self._root_dir if "://" in self._root_dir else os.path.abspath(self._root_dir)
        self._name = name or ""
        self._version = version
        self._prefix = prefix
        self._taken: str | None = None
        self._waits_for_launch = False

    def bind(self, selection: Selection) -> None:
        """Learn whether processes will be launched: before that, nobody can say which version is the run's."""
        self._waits_for_launch = selection.strategy.needs_launch

    def processes_launched(self, strategy: Strategy) -> None:
        """Take rank 0's version on every rank. A collective."""
        self._waits_for_launch = False
        if strategy.world_size == 1:
            return
        failure: OSError | None = None
        if strategy.is_global_zero:
            try:
                self._take_version()
            except OSError as error:
                failure = error
        version, text = strategy.broadcast((self._version, None if failure is None else str(failure)), src=0)
        if text is not None:
            raise LoggerError(
                f"{type(self).__name__} on rank 0 can't make its folder in {self._versions_dir}: {text}"
            ) from failure
        self._version = version

    @property
    def name(self) -> str:
        return self._name

    @property
    def root_dir(self) -> str:
        return self._root_dir

    @property
    def version(self) -> int | str:
        if self._version is None:
            if self._waits_for_launch:
                return self._next_version()  # a preview: whoever runs as rank 0 decides at the launch
            self._take_version()
        assert self._version is not None
        return self._version

    @property
    def log_dir(self) -> str:
        version = self.version
        return os.path.join(self._versions_dir, version if isinstance(version, str) else f"version_{version}")

    def teardown(self) -> None:
        """Remove the folder if nothing was written into it."""
        if self._taken is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self._taken)
            self._taken = None
        self._waits_for_launch = True  # whoever asks from now on makes no folder

    def with_prefix(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """``metrics`` with the prefix before each name."""
        if not self._prefix:
            return dict(metrics)
        return {f"{self._prefix}{self.LOGGER_JOIN_CHAR}{name}": value for name, value in metrics.items()}

    @property
    def _versions_dir(self) -> str:
        return os.path.join(self._base, self._name)

    def _take_version(self) -> None:
        """Fix the version; of several runs that start at once, one gets each."""
        if self._version is not None:
            return
        if (
            getattr(rank_zero_only, "rank", 0) != 0 or "://" in self._base
        ):  # without a Fabric to ask, or no local folder
            self._version = self._next_version()
            return
        os.makedirs(self._versions_dir, exist_ok=True)
        while True:
            version = self._next_version()
            folder = os.path.join(self._versions_dir, f"version_{version}")
            try:
                os.mkdir(folder)
            except FileExistsError:
                continue
            self._version, self._taken = version, folder
            return

    def _next_version(self) -> int:
        try:
            names = os.listdir(self._versions_dir)
        except OSError:  # not there yet
            return 0
        numbers = [int(match.group(1)) for name in names if (match := _VERSION.fullmatch(name))]
        return max(numbers, default=-1) + 1


def as_dictionary(params: Mapping[str, Any] | Namespace | None) -> dict[str, Any]:
    """Hyperparameters as a dictionary.

    Raises:
        ArgumentTypeError: they are neither a mapping nor a namespace.
    """
    if params is None:
        return {}
    if isinstance(params, Namespace):
        return dict(vars(params))
    if isinstance(params, Mapping):
        return {str(key): value for key, value in params.items()}
    raise ArgumentTypeError(f"Hyperparameters are a dictionary or a Namespace, and this is a {type(params).__name__}.")
