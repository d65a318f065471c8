"""What every kind of extension shares: it is bound to a selection once, and torn down once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poplin.selection import Selection


class Extension:
    """Base of all extension kinds (accelerators, strategies, precisions, launchers, ...).

    An extension can be constructed without arguments. What it must know of the run it learns in :meth:`bind`.
    """

    def bind(self, selection: Selection) -> None:
        """Learn the run that this object was chosen for.

        Called once, by the selection, when every choice has been made and checked; in the order accelerator,
        environment, strategy, precision, checkpoint IO, launcher, and then each logger. No process has been
        launched yet: ranks are not final. The default stores nothing.

        Args:
            selection: the complete, immutable result of the selection.
        """

    def teardown(self) -> None:
        """Give back whatever this object took: processes, groups, files, environment variables, signal handlers.

        Called once, by ``Fabric.close()``, in the reverse order of :meth:`bind`; each object's even if another's
        raises. Must not fail when nothing was taken. The default does nothing.
        """
