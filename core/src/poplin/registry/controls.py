"""The controls: which plugins may take part. They are read from the environment, so that they reach the ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import NamedTuple

from poplin.errors import PoplinError
from poplin.registry.names import Reference, fold, parse_reference
from poplin.registry.records import CORE, RUNTIME

ALLOW = "POPLIN_PLUGINS"
BLOCK = "POPLIN_DISABLE_PLUGINS"
STRICT = "POPLIN_STRICT_PLUGINS"
_OFF = ("", "0", "false", "no", "off")


class Word(NamedTuple):
    """One word of a control."""

    variable: str
    text: str
    #: None if it can't be read, so that it matches nothing.
    reference: Reference | None

    def matches(self, kind: str, name: str, distribution: str) -> bool:
        """Whether it means this offer: by its name, or by its distribution's."""
        if fold(self.text) == fold(name):
            return True  # the name of an ambient plugin or a factory may have any form
        wanted = self.reference
        if wanted is None or (wanted.kind is not None and wanted.kind != kind):
            return False
        by_name = fold(wanted.name) == fold(name)
        if wanted.distribution is not None:
            return by_name and fold(wanted.distribution) == fold(distribution)
        return by_name or fold(wanted.name) == fold(distribution)

    def is_name(self, name: str) -> bool:
        """Whether it means ``name`` rather than a distribution."""
        return self.reference is not None and fold(self.reference.name) == fold(name)


class Controls(NamedTuple):
    """What the environment says about plugins."""

    #: None: every plugin may.
    allow: tuple[Word, ...] | None
    block: tuple[Word, ...]
    strict: bool

    @property
    def words(self) -> tuple[Word, ...]:
        """All words of both lists."""
        return (*(self.allow or ()), *self.block)

    def verdict(self, kind: str, name: str, distribution: str) -> str:
        """Why this offer may not take part; empty if it may."""
        for word in self.block:
            if word.matches(kind, name, distribution):
                what = "this name" if word.is_name(name) else f"the distribution {distribution}"
                return f"blocked by {BLOCK}={word.text} ({what})"
        if self.allow is None or distribution in (CORE, RUNTIME):
            return ""  # the built-ins, and what the script itself registers, need no permission
        if any(word.matches(kind, name, distribution) for word in self.allow):
            return ""
        return f"not in the allow-list {ALLOW}={','.join(word.text for word in self.allow)}"


def read_controls(environ: Mapping[str, str] | None = None) -> Controls:
    """Read the three variables. ``POPLIN_PLUGINS`` unset allows all, empty allows none."""
    environ = os.environ if environ is None else environ
    allow = environ.get(ALLOW)
    return Controls(
        None if allow is None else tuple(_words(ALLOW, allow)),
        tuple(_words(BLOCK, environ.get(BLOCK, ""))),
        environ.get(STRICT, "").strip().lower() not in _OFF,
    )


def _words(variable: str, value: str) -> Iterable[Word]:
    for text in dict.fromkeys(filter(None, re.split(r"[,\s]+", value))):
        try:
            yield Word(variable, text, parse_reference(text))
        except PoplinError:
            yield Word(variable, text, None)


def block(word: str, environ: MutableMapping[str, str] | None = None) -> None:
    """Block a name or a distribution from now on, here and in the processes that this one starts.

    The command line's ``-p no:NAME`` does this.

    Args:
        word: ``[kind/][dist:]name``, or the name of a distribution.
        environ: where to put it; the environment of this process by default.

    Raises:
        ArgumentValueError: ``word`` can't be read.
    """
    parse_reference(word)
    environ = os.environ if environ is None else environ
    present = [text for text in re.split(r"[,\s]+", environ.get(BLOCK, "")) if text]
    if word not in present:
        environ[BLOCK] = ",".join([*present, word.strip()])
