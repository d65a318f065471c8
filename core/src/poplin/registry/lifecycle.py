"""The Fabrics that are alive, and who has been told of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

CREATED, LAUNCHED, CLOSED = "poplin_fabric_created", "poplin_processes_launched", "poplin_fabric_closed"


class LiveFabrics:
    """Keeps live Fabrics weakly, with the moments that each has been through, to tell a plugin that comes late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments: list[tuple[weakref.ref[Any], list[str]]] = []

    def note(self, hook: str, fabric: Any) -> None:
        """Remember that plugins are being told of this moment."""
        with self._lock:
            self._moments = [(ref, moments) for ref, moments in self._moments if ref() is not None]
            mine = next((moments for ref, moments in self._moments if ref() is fabric), None)
            if hook == CLOSED:
                self._moments = [(ref, moments) for ref, moments in self._moments if ref() is not fabric]
            elif mine is None:
                self._moments.append((weakref.ref(fabric), [hook]))
            elif hook not in mine:
                mine.append(hook)

    def replay(self, tell: Callable[[str, Any], None]) -> None:
        """Tell somebody who came late."""
        with self._lock:
            past = [(ref(), tuple(moments)) for ref, moments in self._moments]
        for fabric, moments in past:
            if fabric is not None:
                for hook in moments:
                    tell(hook, fabric)

    def after_fork(self) -> None:
        """Nobody else holds the lock in a new process."""
        self._lock = threading.Lock()
