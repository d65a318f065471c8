"""The logger for MLflow."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from poplin.errors import ArgumentValueError, LoggerError
from poplin.loggers import Logger, as_dictionary, plain_values, rank_zero_experiment, to_numbers
from poplin.utilities import import_library, rank_zero_only, rank_zero_warn

_NEEDED_BY = "The logger 'mlflow'"
_INSTALL = "mlflow-skinny"
#: How many values one call of MLflow's takes at most.
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
_RUN_NAME = "mlflow.runName"


class MLFlowLogger(Logger):
    """Logs to one run of MLflow, which global rank 0 makes when the first thing is logged.

    Args:
        experiment_name: of the experiment; it is made if there is none. None takes ``MLFLOW_EXPERIMENT_NAME``, or
            ``lightning_logs``.
        run_name: of the run, as it is shown.
        tracking_uri: where runs are kept; None takes ``MLFLOW_TRACKING_URI``, or a database in the folder ``save_dir``.
            (MLflow itself refuses ``file:`` stores today, unless ``MLFLOW_ALLOW_FILE_STORE`` is set.)
        tags: of the run.
        save_dir: folder of that database, and of the artifacts, where ``tracking_uri`` is None.
        prefix: stands before the name of each metric, with a ``-``.
        artifact_location: where artifacts of an experiment that is made go.
        run_id: of a run that exists, to go on in.
        synchronous: whether :meth:`log_metrics` returns only when the store has taken the metrics; False writes in the
            background, and :meth:`save` waits.

    Raises:
        ArgumentValueError: arguments that can't be meant together.
        MissingPackageError: mlflow is not installed.
    """

    #: What joins prefix and name of a metric.
    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, Any] | None = None,
        save_dir: str | os.PathLike[str] = "./mlruns",
        prefix: str = "",
        artifact_location: str | None = None,
        run_id: str | None = None,
        synchronous: bool = True,
    ) -> None:
        _mlflow()  # now, and not with the first metric
        self._tags = {str(key): str(value) for key, value in (tags or {}).items()}
        if run_name is not None and self._tags.setdefault(_RUN_NAME, run_name) != run_name:
            raise ArgumentValueError(
                f"run_name={run_name!r} and the tag {_RUN_NAME}={self._tags[_RUN_NAME]!r} differ. Give one."
            )
        self._experiment_name = experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "lightning_logs"
        self._save_dir = os.path.abspath(os.fspath(save_dir))
        given = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._is_in_save_dir = not given
        self._tracking_uri = given or f"sqlite:///{os.path.join(self._save_dir, 'mlflow.db')}"
        if self._is_in_save_dir and artifact_location is None:
            artifact_location = os.path.join(self._save_dir, "artifacts")
        self._prefix = prefix
        self._artifact_location = artifact_location
        self._run_id = run_id
        self._synchronous = synchronous
        self._experiment_id: str | None = None
        self._client: Any | None = None
        self._pending: list[Any] = []
        self._next_step = 0
        self._is_open = False

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment_name

    @property
    def version(self) -> str | None:
        """Id of the run; None before there is one."""
        return self._run_id

    @property
    def run_id(self) -> str | None:
        """Id of the run; on rank 0 it is made if there is none."""
        if self._run_id is None:
            self._begin()
        return self._run_id

    @property
    def experiment_id(self) -> str | None:
        """Id of the experiment; on rank 0 it is made if there is none."""
        if self._experiment_id is None:
            self._begin()
        return self._experiment_id

    @property
    def tracking_uri(self) -> str:
        """Where runs are kept."""
        return self._tracking_uri

    @property
    def save_dir(self) -> str | None:
        """Folder of the runs, or None where they are kept elsewhere."""
        if self._is_in_save_dir:
            return self._save_dir
        return self._tracking_uri.removeprefix("file:") if self._tracking_uri.startswith("file:") else None

    @property
    def root_dir(self) -> str | None:
        """Folder of the runs, or None where they are kept elsewhere."""
        return self.save_dir

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The ``MlflowClient``; give it ``logger.run_id``. (On other ranks an object that ignores everything.)"""
        return self._connected()

    def processes_launched(self, strategy: Any) -> None:
        """Nothing: rank 0 makes the run with the first metric, and the others need none."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics.

        Args:
            metrics: name → number.
            step: the step they belong to; without one, the last one and one more.

        Raises:
            LoggerError: the store refuses them.
        """
        numbers = to_numbers(metrics)
        if step is None:
            step = self._next_step
        step = int(step)
        self._next_step = step + 1
        client, run_id = self._opened()
        now = int(time.time() * 1000)
        entities = _mlflow().entities
        values = [
            entities.Metric(key=_fitting(self._prefixed(name)), value=float(value), timestamp=now, step=step)
            for name, value in numbers.items()
        ]
        for start in range(0, len(values), _METRICS_AT_ONCE):
            part = values[start : start + _METRICS_AT_ONCE]
            done = _stored(lambda part=part: client.log_batch(run_id, metrics=part, synchronous=self._synchronous))
            if done is not None:
                self._pending.append(done)

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record hyperparameters; nested names are joined by ``/``.

        MLflow lets no parameter change: one that has another value already is left as it is, with a warning.

        Args:
            params: a dictionary, nested as you like, or a Namespace.
            args: ignored.
            kwargs: ignored.

        Raises:
            LoggerError: the store refuses them.
        """
        client, run_id = self._opened()
        library = _mlflow()
        limit = int(getattr(getattr(library.utils, "validation", None), "MAX_PARAM_VAL_LENGTH", 6000))
        there = dict(_stored(lambda: client.get_run(run_id)).data.params)
        fresh: dict[str, str] = {}
        changed: list[str] = []
        for name, value in _flat(plain_values(as_dictionary(params))):
            key, text = _fitting(name), str(value)[:limit]
            if key in there and there[key] != text:
                changed.append(f"{key} ({there[key]} -> {text})")
            elif key not in there:
                fresh[key] = text
        if changed:
            rank_zero_warn(f"MLflow lets no parameter change; these keep their first value: {', '.join(changed)}.")
        values = [library.entities.Param(key=key, value=text) for key, text in fresh.items()]
        for start in range(0, len(values), _PARAMS_AT_ONCE):
            part = values[start : start + _PARAMS_AT_ONCE]
            _stored(lambda part=part: client.log_batch(run_id, params=part))

    @rank_zero_only
    def log_checkpoint(self, path: str | os.PathLike[str], artifact_path: str = "checkpoints") -> None:
        """Copy a checkpoint, a file or a folder, to the artifacts of the run, on rank 0.

        Args:
            path: a local file or folder.
            artifact_path: folder below the run's artifacts.
        """
        client, run_id = self._opened()
        path = os.fspath(path)
        if os.path.isdir(path):
            _stored(lambda: client.log_artifacts(run_id, path, f"{artifact_path}/{os.path.basename(path)}"))
        else:
            _stored(lambda: client.log_artifact(run_id, path, artifact_path))

    def save(self) -> None:
        """Wait for what is written in the background.

        Raises:
            LoggerError: the store has refused some of it.
        """
        pending, self._pending = self._pending, []
        for operation in pending:
            _stored(operation.wait)

    def finalize(self, status: str) -> None:
        """The run is over: mark it as finished, or as failed. What is logged later opens it again."""
        if not self._is_open:
            return
        try:
            self.save()
        finally:
            self._is_open = False
            ended = "FINISHED" if status in ("success", "finished") else "FAILED"
            _stored(lambda: self._client.set_terminated(self._run_id, ended))  # type: ignore[union-attr]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_pending": [], "_is_open": False}

    def _prefixed(self, name: str) -> str:
        return f"{self._prefix}{self.LOGGER_JOIN_CHAR}{name}" if self._prefix else name

    @rank_zero_only
    def _begin(self) -> None:
        self._opened()

    def _opened(self) -> tuple[Any, str]:
        """The client and the run, made or opened again if need be."""
        self._connected()
        if not self._is_open:
            _stored(self._open_run)
            self._is_open = True
        assert self._run_id is not None
        return self._client, self._run_id

    def _connected(self) -> Any:
        if self._client is None:
            if self._is_in_save_dir:
                os.makedirs(self._save_dir, exist_ok=True)
            self._client = _stored(lambda: _mlflow().MlflowClient(self._tracking_uri))
        return self._client

    def _open_run(self) -> None:
        client: Any = self._client
        if self._run_id is not None:
            run = client.get_run(self._run_id)
            self._experiment_id = run.info.experiment_id
            client.update_run(self._run_id, status="RUNNING")
            return
        found = client.get_experiment_by_name(self._experiment_name)
        if found is None:
            self._experiment_id = client.create_experiment(self._experiment_name, self._artifact_location)
        elif found.lifecycle_stage != "active":
            raise LoggerError(
                f"The MLflow experiment {self._experiment_name!r} was deleted. Restore it, or give another name."
            )
        else:
            self._experiment_id = found.experiment_id
        run = client.create_run(self._experiment_id, tags=self._tags)
        self._run_id = run.info.run_id


def _mlflow() -> Any:
    return import_library("mlflow", _NEEDED_BY, _INSTALL)


def _stored(action: Any) -> Any:
    """Do something with the store, whose errors become ours."""
    try:
        return action()
    except _mlflow().exceptions.MlflowException as error:
        raise LoggerError(f"MLflow refuses it: {error}") from error


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}/")
        else:
            yield name, value


def _fitting(name: str) -> str:
    """A name with what MLflow accepts: letters, digits, ``_-. :/``, and no path that leaves its folder."""
    fits = "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)
    parts = [part if part not in ("", ".", "..") else "_" for part in fits.split("/")]
    return "/".join(parts)[:250]
