"""What is done last when the interpreter exits.

``atexit`` runs what was registered last first. This module is imported (and registers) before whatever closes Fabrics
at exit, so that what is put in here runs after it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_actions: list[Callable[[], None]] = []


def at_the_end(action: Callable[[], None]) -> None:
    """Run ``action`` when the interpreter exits, after open Fabrics have been closed; the first ones first."""
    if action not in _actions:
        _actions.append(action)


def forget(action: Callable[[], None]) -> None:
    """Don't."""
    if action in _actions:
        _actions.remove(action)


_before_waiting: list[Callable[[], None]] = []


def before_waiting(action: Callable[[], None]) -> None:
    """Run ``action`` when an exception has ended the script, before this process waits for others that must end too.

    What they may wait for, as an open process group, is let go in it. It may be run again at the exit.
    """
    _before_waiting.append(action)


def let_go() -> None:
    """An exception has ended the script, and this process is about to wait for others."""
    for action in list(_before_waiting):
        action()


@atexit.register
def _run() -> None:
    failure: Exception | None = None
    for action in list(_actions):
        try:
            action()
        except Exception as error:  # the others have their turn all the same
            failure = failure or error
    if failure is not None:
        raise failure
