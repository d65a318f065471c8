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


@atexit.register
def _run() -> None:
    for action in list(_actions):
        action()
