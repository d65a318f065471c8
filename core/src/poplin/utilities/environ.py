"""Environment variables that are set for a time, and given back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class EnvironmentVariables:
    """Sets environment variables of this process and gives them back as they were.

    A variable that somebody else has changed since is left as it is: it is theirs now.
    """

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}
        self._ours: dict[str, str | None] = {}

    def set(self, values: Mapping[str, str | None]) -> None:
        """Set each variable; None takes it away."""
        for name, value in values.items():
            self._before.setdefault(name, os.environ.get(name))
            self._ours[name] = value
            _put(name, value)

    def restore(self) -> None:
        """Give back what was set. Again is a no-op."""
        for name, before in self._before.items():
            if os.environ.get(name) == self._ours[name]:
                _put(name, before)
        self._before.clear()
        self._ours.clear()


@contextmanager
def environment_variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set each variable (None takes it away) for the length of the block."""
    variables = EnvironmentVariables()
    try:
        variables.set(values)
        yield
    finally:
        variables.restore()


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def seconds_from_environment(name: str, default: float) -> float:
    """A number of seconds, not negative, from a variable; ``default`` where it isn't set.

    Raises:
        ArgumentValueError: it is set to something else.
    """
    from poplin.errors import ArgumentValueError

    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentValueError(f"The environment variable {name}={text} is no time: write seconds, 0 or more.")
    return value
