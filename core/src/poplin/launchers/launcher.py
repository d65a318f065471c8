"""The interface of a launcher: how the processes of a run come to be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from poplin.extension import Extension

if TYPE_CHECKING:
    from poplin.selection import Selection


class Launcher(Extension, ABC):
    """Starts the processes of a run. It leaves none behind, whatever happens."""

    #: Whether it can run only a function (as ``spawn`` can), so that ``launch()`` without one is an error.
    needs_function: bool = False

    #: The run that it launches; set by :meth:`bind`.
    selection: Selection | None = None

    def bind(self, selection: Selection) -> None:
        """Remember the selection: environment, devices and strategy of the run. Called once by the selection."""
        self.selection = selection

    @property
    @abstractmethod
    def is_interactive_compatible(self) -> bool:
        """Whether it works in a notebook. Read by the selection."""

    @abstractmethod
    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Start the processes and run ``function(*args, **kwargs)`` in each.

        Called by ``Fabric.launch``; ``function`` first brings up the process group of its process. Runtime
        registrations (``poplin.register``) are handed to the workers ahead of everything else.

        Returns:
            Rank 0's result where the caller spawned the ranks; each process's own where every rank runs the script.

        Raises:
            Exception: the first failing rank's own error, its traceback in the message or the chain.
            WorkerError: a rank ended without an exception of its own (killed, for instance).
        """

    def kill(self, signum: int) -> None:
        """Send ``signum`` to the processes that it started. Called when this process must end early."""
