"""What becomes of a plugin's failure where nobody asked for that plugin by name: one warning, or an error if strict."""

from __future__ import annotations

import difflib
import threading
from typing import Any

from poplin.registry.catalogue import Catalogue
from poplin.registry.controls import Word, read_controls
from poplin.registry.names import fold
from poplin.registry.notices import warn
from poplin.registry.records import Failure, broken


class Complaints:
    """Says everything once in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: set[Any] = set()

    def once(self, key: Any, message: str) -> None:
        """Warn, unless ``key`` was warned about."""
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        warn(message)

    def of_failure(self, failure: Failure) -> None:
        """Warn that the run goes on without a plugin."""
        self.once(
            (failure.provider.key, failure.stage),
            f"{broken(failure)}\nThe run goes on without it. (POPLIN_STRICT_PLUGINS=1 makes this an error.)",
        )

    def raise_or_warn(self, failure: Failure) -> None:
        """As :meth:`of_failure`, but an error in strict mode.

        Raises:
            BrokenPluginError: the controls are strict.
        """
        if read_controls().strict:
            raise broken(failure) from failure.error
        self.of_failure(failure)

    def of_controls(self, current: Catalogue) -> None:
        """Warn of the words in controls that match nothing."""
        for word, hits in current.hits().items():
            if not hits:
                self.once(("control", word.variable, word.text), _unmatched(current, word))

    def forget(self) -> None:
        """Everything may be said again."""
        self._lock = threading.Lock()
        self._said.clear()


def _unmatched(current: Catalogue, word: Word) -> str:
    if word.reference is None:
        return f"{word.variable}: {word.text!r} can't be read and has no effect. The form is [kind/][dist:]name."
    words = {fold(offer.name): offer.name for offer in current.offers}
    words |= {fold(offer.provider.distribution): offer.provider.distribution for offer in current.offers}
    close = difflib.get_close_matches(fold(word.reference.name), list(words), n=3)
    hint = f" Did you mean {' or '.join(repr(words[match]) for match in close)}?" if close else ""
    return f"{word.variable}: {word.text!r} matches no installed plugin and no name, so it has no effect.{hint}"
