"""The built-in logger: metrics in a CSV file."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.loggers.folder import FolderLogger, as_dictionary
from poplin.loggers.hyperparameters import merge_hyperparameters
from poplin.loggers.logger import rank_zero_experiment
from poplin.loggers.metrics import to_numbers
from poplin.loggers.table import Table


class CSVLogger(FolderLogger):
    """Writes metrics to ``root_dir/name/version_0/metrics.csv``, and hyperparameters to ``hparams.json`` beside it.

    Each call writes one row, and hands it to the operating system at once: a process that is killed loses none. A
    column that appears later is added to the whole file. A version that exists already is continued: its rows stay,
    and steps that are not given go on from its last.

    Args:
        root_dir: folder of all experiments.
        name: of the experiment; None leaves this level out.
        version: a number, or any name for the folder; None takes the next number.
        prefix: stands before the name of each metric, with a ``-``.
        flush_logs_every_n_steps: after how many rows the file is also forced onto the disk (fsync), so that they
            survive a power cut.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument that can't be meant.
    """

    #: Name of the file.
    NAME_METRICS_FILE = "metrics.csv"
    #: Name of the file of hyperparameters.
    NAME_HPARAMS_FILE = "hparams.json"

    def __init__(
        self,
        root_dir: str | os.PathLike[str] = ".",
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        super().__init__(root_dir, name, version, prefix)
        if "://" in self._base:
            raise ArgumentValueError(
                f"root_dir={self._root_dir!r} is a URL: CSVLogger appends to its file, which needs a local folder."
            )
        if isinstance(flush_logs_every_n_steps, bool) or not isinstance(flush_logs_every_n_steps, int):
            raise ArgumentTypeError(
                f"flush_logs_every_n_steps is a number of rows, and {flush_logs_every_n_steps!r} is none."
            )
        if flush_logs_every_n_steps < 1:
            raise ArgumentValueError(f"flush_logs_every_n_steps={flush_logs_every_n_steps}: give 1 or more.")
        self._flush_every = flush_logs_every_n_steps
        self._table: Table | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> Table:
        """The table behind the file. (On other ranks an object that ignores everything.)"""
        return self._opened()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append a row.

        Args:
            metrics: name → number.
            step: the step they belong to; without one, the last row's and one more. A metric called ``step`` serves,
                if no other is given.

        Raises:
            LoggerError: the file can't be written.
        """
        self._opened().append(self.with_prefix(to_numbers(metrics)), step)

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Write hyperparameters; later ones are added to earlier ones.

        Args:
            params: a dictionary, nested as you like, or a Namespace.
            args: ignored.
            kwargs: ignored.

        Raises:
            LoggerError: the file can't be written.
        """
        merge_hyperparameters(os.path.join(self.log_dir, self.NAME_HPARAMS_FILE), as_dictionary(params))

    def save(self) -> None:
        """Force what was logged onto the disk."""
        if self._table is not None:
            self._table.sync()

    def finalize(self, status: str) -> None:
        """The run is over: force the rows onto the disk and close the file. A later row opens it again."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def _opened(self) -> Table:
        if self._table is None:
            self._table = Table(os.path.join(self.log_dir, self.NAME_METRICS_FILE), self._flush_every)
        return self._table
