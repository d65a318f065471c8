"""The TensorBoard logger."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.loggers import FolderLogger, as_dictionary, rank_zero_experiment, to_numbers
from poplin.wrappers import unwrap


class TensorBoardLogger(FolderLogger):
    """Writes TensorBoard's event files into ``root_dir/name/version_0``.

    Args:
        root_dir: folder of all experiments.
        name: of the experiment; None or empty leaves this level out.
        version: a number, or any name for the folder; None takes the next number. That of an earlier run goes on in
            its folder.
        default_hp_metric: whether hyperparameters without metrics get the metric ``hp_metric``, which TensorBoard
            needs to show them.
        prefix: stands before the name of each metric, with a ``-``.
        sub_dir: a folder below the version, for those who log several things side by side.
        kwargs: handed on to ``torch.utils.tensorboard.SummaryWriter``.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str] = ".",
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(root_dir, name, version, prefix)
        if "log_dir" in kwargs:
            raise ArgumentValueError("The folder is root_dir/name/version/sub_dir: give these instead of log_dir.")
        self._sub_dir = None if sub_dir is None else os.fspath(sub_dir)
        self._default_hp_metric = default_hp_metric
        self._kwargs = kwargs
        self._writer: SummaryWriter | None = None
        self._hparams: dict[str, Any] = {}
        self._next_step = 0

    @property
    def sub_dir(self) -> str | None:
        """The folder below the version, if one was given."""
        return self._sub_dir

    @property
    def log_dir(self) -> str:
        """Folder of this run's event files."""
        folder = super().log_dir
        if self._sub_dir is None:
            return folder
        return os.path.join(folder, os.path.expandvars(os.path.expanduser(self._sub_dir)))

    @property
    @rank_zero_experiment
    def experiment(self) -> SummaryWriter:
        """The ``SummaryWriter``. (On other ranks an object that ignores everything.)"""
        return self._opened()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics.

        Args:
            metrics: name → number; a dictionary of numbers as a value becomes one chart of several lines.
            step: the step they belong to; without one, the last one and one more.
        """
        if step is None:
            step = self._next_step
        self._next_step = int(step) + 1
        charts = {name: to_numbers(value) for name, value in metrics.items() if isinstance(value, Mapping)}
        numbers = to_numbers({name: value for name, value in metrics.items() if name not in charts})
        writer = self._opened()
        for name, value in self.with_prefix(numbers).items():
            writer.add_scalar(name, value, step)
        for name, values in charts.items():
            (prefixed,) = self.with_prefix({name: 0.0})
            writer.add_scalars(prefixed, values, step)

    def log_hyperparams(
        self,
        params: Mapping[str, Any] | Namespace,
        metrics: Mapping[str, Any] | float | None = None,
        step: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Record hyperparameters, together with the metrics by which TensorBoard compares runs.

        Args:
            params: a dictionary, nested as you like, or a Namespace.
            metrics: name → number; a number alone is called ``hp_metric``.
            step: the step that the metrics belong to, 0 without one.
            args: ignored.
            kwargs: ignored.
        """
        self._hparams.update(_flat(as_dictionary(params)))
        if metrics is None:
            numbers = {"hp_metric": -1.0} if self._default_hp_metric else {}
        else:
            numbers = to_numbers(metrics if isinstance(metrics, Mapping) else {"hp_metric": metrics})
        if not numbers:
            return  # TensorBoard shows hyperparameters beside metrics only
        # the run name "." keeps it in this run's folder; without one it would become a run of its own
        writer = self._opened()
        writer.add_hparams(self._hparams, numbers, run_name=".", global_step=step or 0)
        writer.flush()

    def log_graph(self, model: nn.Module, input_array: Any | None = None) -> None:
        """Record the graph of a module.

        Args:
            model: set up or not.
            input_array: what its forward takes; None means its attribute ``example_input_array``.

        Raises:
            ArgumentValueError: there is no input.
        """
        original = unwrap(model)
        if not isinstance(original, nn.Module):
            raise ArgumentTypeError(f"log_graph() takes a module, and got a {type(original).__name__}.")
        if input_array is None:
            input_array = getattr(original, "example_input_array", None)
        if input_array is None:
            raise ArgumentValueError(
                "log_graph() needs something to run the module on: give input_array, or the module an attribute "
                "example_input_array."
            )
        device = next((parameter.device for parameter in original.parameters()), torch.device("cpu"))
        self._opened().add_graph(original, _moved(input_array, device))

    def save(self) -> None:
        """Write what is buffered to the event files."""
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """The run is over: write what is buffered and close the files. A later metric opens new ones."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writer": None}

    def _opened(self) -> SummaryWriter:
        if self._writer is None:
            self._writer = SummaryWriter(log_dir=self.log_dir, **self._kwargs)
        return self._writer


def _moved(data: Any, device: torch.device) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device)
    if isinstance(data, (tuple, list)):
        return tuple(_moved(item, device) for item in data)
    return data


def _flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested hyperparameters with joined names, and values that TensorBoard can hold."""
    return dict(_entries(params, prefix))


def _entries(params: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Namespace):
            value = vars(value)
        if isinstance(value, Mapping) and value:
            yield from _entries(value, f"{name}/")
        elif isinstance(value, (bool, int, float, str)):
            yield name, value
        elif isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
            yield name, value.item()
        else:
            yield name, str(value)
