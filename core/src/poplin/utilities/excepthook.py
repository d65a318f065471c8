"""A hook for the exception that ends the script, which can be taken out of a chain of hooks again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

#: Gets the exception, and a function that hands it on to the hooks before (which print it).
Action = Callable[[BaseException, Callable[[], None]], None]


class ExceptionHook:
    """Calls ``action`` for the exception that ends the script, from now until :meth:`remove`.

    Others may put hooks of their own on top (torch does, with each process group) and keep this one in their chain: one
    that is removed hands everything on. Each is used once.
    """

    def __init__(self, action: Action) -> None:
        self._action: Action | None = action
        self._previous = sys.excepthook
        sys.excepthook = self

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        def hand_on() -> None:
            self._previous(kind, error, trace)

        if self._action is None:
            hand_on()
        else:
            self._action(error, hand_on)

    def remove(self) -> None:
        """Give the place back."""
        self._action = None
        if sys.excepthook is self:
            sys.excepthook = self._previous
