"""Names: how they are folded, what may be registered, and the grammar ``[kind/][dist:]name``."""

from __future__ import annotations

import re
from typing import NamedTuple

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.registry.kinds import AMBIENT, CALLBACKS, KINDS

_SEPARATORS = re.compile(r"[-_.]+")
_REGISTRABLE = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")


def fold(name: str) -> str:
    """The form in which names are compared: lower case, and ``-``, ``_``, ``.`` are one.

    Lookup, listing, allowing and blocking all use it, for distributions as for offers.
    """
    return _SEPARATORS.sub("-", name.strip().casefold())


def is_registrable(name: str) -> bool:
    """Whether a plugin may register ``name``."""
    return _REGISTRABLE.fullmatch(name) is not None


def require_registrable(name: str) -> None:
    """Refuse a name that could not be written everywhere.

    Raises:
        ArgumentTypeError: it is no string.
        ArgumentValueError: it has other characters than names may have.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"A name is a string, not {name!r}.")
    if not is_registrable(name):
        raise ArgumentValueError(
            f"{name!r} can't be registered: a name has lower-case letters and digits, and '.', '_', '-' between them."
        )


class Reference(NamedTuple):
    """What ``[kind/][dist:]name`` says."""

    kind: str | None
    distribution: str | None
    name: str

    def __str__(self) -> str:
        kind = f"{self.kind}/" if self.kind else ""
        distribution = f"{self.distribution}:" if self.distribution else ""
        return f"{kind}{distribution}{self.name}"


def parse_reference(text: str) -> Reference:
    """Read ``[kind/][dist:]name``; the kind may be written in the singular.

    Raises:
        ArgumentTypeError: it is no string.
        ArgumentValueError: a part is empty, or the kind is none of those that exist.
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(f"A name is a string, not {text!r}.")
    kind, slash, rest = text.strip().rpartition("/")
    distribution, colon, name = rest.rpartition(":")
    if not name.strip() or (slash and not kind.strip()) or (colon and not distribution.strip()):
        raise ArgumentValueError(f"{text!r} names nothing: write 'name', 'dist:name', 'kind/name' or 'kind/dist:name'.")
    return Reference(_kind(kind, text) if slash else None, distribution.strip() or None, name.strip())


def _kind(written: str, text: str) -> str:
    folded = fold(written)
    for kind in KINDS.values():
        if folded in (fold(kind.name), fold(kind.singular.replace(" ", "-"))):
            return kind.name
    for other in (AMBIENT, CALLBACKS):
        if folded == fold(other):
            return other
    raise ArgumentValueError(
        f"{text!r}: {written!r} is no kind of extension. The kinds are {', '.join([*KINDS, AMBIENT, CALLBACKS])}."
    )
