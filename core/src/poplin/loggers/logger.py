"""The interface of a logger."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from poplin.extension import Extension
from poplin.rank_zero import rank_zero_only

if TYPE_CHECKING:
    from poplin.strategies.strategy import Strategy

_GUARDED = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize")


class Logger(Extension, ABC):
    """Takes metrics and hyperparameters to wherever they are looked at.

    Fabric calls a logger on every rank. This base class lets the writing methods of its subclasses run on global
    rank 0 only, unless the subclass sets ``every_rank = True``.
    """

    #: Whether the writing methods run on every rank.
    every_rank: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.every_rank:
            for name in _GUARDED:
                method = vars(cls).get(name)
                if callable(method) and not getattr(method, "_rank_zero", False):
                    setattr(cls, name, _on_rank_zero(method))

    @property
    def name(self) -> str | None:
        """Name of the experiment."""
        return None

    @property
    def version(self) -> int | str | None:
        """Which run of the experiment this is; the same on every rank."""
        return None

    @property
    def root_dir(self) -> str | None:
        """Folder of all its experiments, or None if it writes no files."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Folder of this run, the same on every rank, or None if it writes no files."""
        return None

    @property
    def group_separator(self) -> str:
        """What stands between a group and a metric in a name."""
        return "/"

    @property
    def experiment(self) -> Any:
        """The underlying object of the logging library, if there is one."""
        return None

    def processes_launched(self, strategy: Strategy) -> None:
        """The processes of the run exist.

        Called once by Fabric, on every rank, before the user's code goes on: the moment at which ranks can agree on a
        folder. A collective. The default does nothing.

        Args:
            strategy: has ranks, and brings them together.
        """

    @abstractmethod
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Record ``metrics``. Called by ``Fabric.log`` and ``Fabric.log_dict``, by keyword.

        Args:
            metrics: names and plain numbers.
            step: the step they belong to, or None.
        """

    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record hyperparameters. Called by users. The default does nothing."""

    def log_graph(self, model: Any, input_array: Any | None = None) -> None:
        """Record a model's graph. Called by users. The default does nothing."""

    def save(self) -> None:
        """Write what is buffered. Called by users and by ``Fabric.close``. The default does nothing."""

    def finalize(self, status: str) -> None:
        """The run is over. Called by ``Fabric.close`` with ``"success"`` or ``"failed"``. The default saves."""
        self.save()


def _on_rank_zero(method: Callable[..., Any]) -> Callable[..., Any]:
    guarded = rank_zero_only(method)
    functools.update_wrapper(guarded, method)
    guarded._rank_zero = True  # type: ignore[attr-defined]
    return guarded


def rank_zero_experiment(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorates the property behind ``Logger.experiment``: ranks but the first get an object that ignores everything.

    Loggers written for Lightning use it.

    Args:
        function: makes, or returns, the object of the logging library.
    """

    @functools.wraps(function)
    def experiment(self: Any) -> Any:
        return function(self) if getattr(rank_zero_only, "rank", 0) == 0 else _Ignoring()

    return experiment


class _Ignoring:
    """Takes any call, and any item, and does nothing."""

    def ignore(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.ignore

    def __getitem__(self, index: Any) -> _Ignoring:
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        """Do nothing."""
