"""The logger for Weights & Biases."""

from __future__ import annotations

import os
import secrets
import string
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import nn

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.loggers import Logger, as_dictionary, plain_values, rank_zero_experiment, to_numbers
from poplin.utilities import import_library, rank_zero_only
from poplin.wrappers import unwrap

_STEP = "trainer/global_step"
_NEEDED_BY = "The logger 'wandb'"
#: The runs that loggers of this process have made and not finished.
_OURS: list[Any] = []


class WandbLogger(Logger):
    """Logs to one run of Weights & Biases, which global rank 0 makes when the first thing is logged.

    wandb's own process writes what was logged to its file every 15 seconds (a setting of wandb's,
    ``x_transaction_log_flush_interval``), and all of it when this process ends. It can't be asked for more: a process
    that is killed loses what came after the last write.

    What is None is left to wandb: its environment variables (``WANDB_PROJECT``, ``WANDB_MODE``, ...) and its settings.
    A run that exists in this process already is used, and is not finished by us.

    Args:
        name: of the run, as it is shown.
        save_dir: folder below which wandb puts its own folder, ``wandb``.
        id: of the run. One that exists is resumed (``resume="allow"``, unless another is given).
        project: name of the project.
        offline: write to the disk only; ``wandb sync FOLDER`` uploads it later.
        group: runs of one group are shown together.
        prefix: stands before the name of each metric, with a ``-``.
        log_model: whether :meth:`log_checkpoint` uploads what it is given.
        experiment: a run of your own; it is not finished by us.
        version: the same as ``id``, as Lightning calls it.
        dir: the same as ``save_dir``, as wandb calls it.
        kwargs: handed on to ``wandb.init``: ``entity``, ``tags``, ``config``, ``job_type``, ``settings``, ...

    Raises:
        ArgumentValueError: arguments that can't be meant together.
        MissingPackageError: wandb is not installed.
    """

    #: What joins prefix and name of a metric.
    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] = ".",
        id: str | None = None,
        project: str | None = None,
        offline: bool = False,
        group: str | None = None,
        prefix: str = "",
        log_model: bool = False,
        experiment: Any | None = None,
        version: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        import_library("wandb", _NEEDED_BY)  # now, and not with the first metric
        if id is not None and version is not None and id != version:
            raise ArgumentValueError(f"id={id!r} and version={version!r} mean the same, and differ. Give one.")
        if offline and log_model:
            raise ArgumentValueError("log_model=True uploads checkpoints, and offline=True uploads nothing. Give one.")
        if offline and kwargs.get("mode") not in (None, "offline"):
            raise ArgumentValueError(f"offline=True and mode={kwargs['mode']!r} contradict each other. Give one.")
        self._name = name
        self._id = id if id is not None else version
        self._prefix = prefix
        self._log_model = log_model
        # what a relative path means must not change when the script changes its folder
        self._save_dir = os.path.abspath(os.fspath(save_dir if dir is None else dir))
        self._arguments: dict[str, Any] = {"name": name, "project": project, "group": group, "dir": self._save_dir}
        if offline:
            self._arguments["mode"] = "offline"
        self._arguments.update(kwargs)
        self._run: Any | None = experiment
        self._is_given = experiment is not None
        self._is_ours = False
        self._next_step = 0

    @property
    def name(self) -> str | None:
        """Name of the project, as far as it is known."""
        project = self._arguments.get("project") or os.environ.get("WANDB_PROJECT") or getattr(self._run, "project", "")
        return str(project) if project else None

    @property
    def version(self) -> str | None:
        """Id of the run; None before there is one."""
        return str(self._run.id) if self._run is not None else self._id

    @property
    def root_dir(self) -> str:
        """Folder below which wandb puts its own."""
        return self._save_dir

    @property
    def save_dir(self) -> str:
        """Folder below which wandb puts its own."""
        return self._save_dir

    @property
    def log_dir(self) -> None:
        """None: wandb names the folder of a run when the run begins; ``experiment.dir`` has it, on rank 0."""
        return

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run. (On other ranks an object that ignores everything.)"""
        return self._opened()

    def processes_launched(self, strategy: Any) -> None:
        """Let every rank know the run's id. A collective."""
        if strategy.world_size == 1:
            return
        if self._id is None and self._run is None and strategy.is_global_zero:
            existing = _wandb().run
            self._id = str(existing.id) if existing is not None else _new_id()
        self._id = strategy.broadcast(self.version, src=0)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics.

        Args:
            metrics: name → number.
            step: the step they belong to, logged as ``trainer/global_step``; without one, the last one and one more.
        """
        numbers = to_numbers(metrics)
        if self._prefix:
            numbers = {f"{self._prefix}{self.LOGGER_JOIN_CHAR}{name}": value for name, value in numbers.items()}
        if step is None:
            step = self._next_step
        self._next_step = int(step) + 1
        # wandb's own step must grow, and drops what comes late in silence; ours may repeat.
        self._opened().log({**numbers, _STEP: int(step)})

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record hyperparameters in the run's config; a later value of a key replaces an earlier one.

        Args:
            params: a dictionary, nested as you like, or a Namespace.
            args: ignored.
            kwargs: ignored.
        """
        self._opened().config.update(plain_values(as_dictionary(params)), allow_val_change=True)

    @rank_zero_only
    def watch(self, model: nn.Module, log: str = "gradients", log_freq: int = 100, log_graph: bool = True) -> None:
        """Let wandb record gradients or parameters of a module, on rank 0.

        Args:
            model: set up or not.
            log: ``"gradients"``, ``"parameters"`` or ``"all"``.
            log_freq: every how many backward passes.
            log_graph: whether its graph is recorded.
        """
        original = unwrap(model)
        if not isinstance(original, nn.Module):
            raise ArgumentTypeError(f"watch() takes a module, and got a {type(original).__name__}.")
        self._opened().watch(original, log=log, log_freq=log_freq, log_graph=log_graph)

    @rank_zero_only
    def log_checkpoint(self, path: str | os.PathLike[str], aliases: list[str] | None = None) -> None:
        """Upload a checkpoint that stands at ``path`` as an artifact of the run, on rank 0.

        Args:
            path: a local file or folder.
            aliases: of this version; ``"latest"`` is always one.

        Raises:
            ArgumentValueError: the logger was made without ``log_model=True``.
        """
        if not self._log_model:
            raise ArgumentValueError("log_checkpoint() uploads a model, which WandbLogger(log_model=True) allows.")
        path = os.fspath(path)
        artifact = _wandb().Artifact(f"model-{self.version}", type="model")
        artifact.add_dir(path) if os.path.isdir(path) else artifact.add_file(path)
        self._opened().log_artifact(artifact, aliases=[*(aliases or []), "latest"])

    def finalize(self, status: str) -> None:
        """The run is over: finish it, unless it is the user's, as failed if it did. What is logged later resumes it."""
        if self._run is None or self._is_given:
            return
        self._id = str(self._run.id)
        if self._is_ours:
            _OURS[:] = [one for one in _OURS if one is not self._run]
            self._run.finish(exit_code=0 if status in ("success", "finished") else 1)
        self._run, self._is_ours = None, False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None, "_is_given": False, "_is_ours": False, "_id": self.version}

    def _opened(self) -> Any:
        if self._run is None:
            run = _wandb().run
            if run is None or any(run is one for one in _OURS):
                arguments = {**self._arguments, "id": self._id}
                if self._id is not None:
                    arguments.setdefault("resume", "allow")
                if run is not None:  # another logger's, and not the user's: both stay open
                    arguments.setdefault("reinit", "create_new")
                run = _wandb().init(**{name: value for name, value in arguments.items() if value is not None})
                self._is_ours = True
                _OURS.append(run)
            self._run, self._id = run, str(run.id)
            define = getattr(run, "define_metric", None)
            if callable(define):
                define(_STEP)
                define("*", step_metric=_STEP, step_sync=True)
        return self._run


def _new_id() -> str:
    """As wandb's own: eight letters and digits."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))


def _wandb() -> Any:
    return import_library("wandb", _NEEDED_BY)
