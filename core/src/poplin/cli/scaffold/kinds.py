"""What ``poplin plugins new`` can write, and what its templates need to know."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from poplin.errors import ArgumentValueError
from poplin.registry.kinds import AMBIENT_GROUP, CALLBACK_GROUPS, CALLBACKS, KINDS
from poplin.registry.names import fold


class Subject(NamedTuple):
    """One kind of package."""

    #: What it is called in prose.
    singular: str
    #: The entry-point group.
    group: str
    #: How it is used, in Python.
    usage: str
    #: Module of the implementation, in the package.
    module: str
    #: How its class ends.
    suffix: str
    #: The kind, in the plural; empty for what offers no name.
    kind: str = ""
    #: Roles, and other entry points, that it declares beside its name.
    roles: tuple[str, ...] = ()
    #: What its entry points point at, below the package.
    target: str = "plugin"


def _of_kind(kind: str, argument: str, suffix: str, *roles: str) -> Subject:
    found = KINDS[kind]
    module = found.singular.replace(" ", "_").lower()
    usage = f'from poplin import Fabric\n\nfabric = Fabric({argument}="__NAME__")'
    return Subject(found.singular, found.group, usage, module, suffix, kind, roles)


_ANY_FABRIC = "from poplin import Fabric\n\nfabric = Fabric()  # every Fabric has it"

#: The first argument of the command → what it writes.
SUBJECTS: dict[str, Subject] = {
    "accelerator": _of_kind("accelerators", "accelerator", "Accelerator"),
    "strategy": _of_kind("strategies", "strategy", "Strategy"),
    "precision": _of_kind("precisions", "precision", "Precision"),
    "launcher": _of_kind("launchers", "plugins", "Launcher"),
    "environment": _of_kind("environments", "plugins", "Environment", "auto"),
    "logger": _of_kind("loggers", "loggers", "Logger"),
    "checkpoint_io": _of_kind("checkpoint_ios", "plugins", "CheckpointIO", "auto"),
    "callbacks": Subject(
        "callbacks factory", CALLBACK_GROUPS[1], _ANY_FABRIC, "callback", "Callback", target="factory:callbacks"
    ),
    "ambient": Subject("ambient plugin", AMBIENT_GROUP, _ANY_FABRIC, "plugin", ""),
}


def key_of(written: str) -> str:
    """The key of ``SUBJECTS`` that is meant: in the plural too, whatever the case, and with ``-`` for ``_``.

    Raises:
        ArgumentValueError: none is; the message names what comes near, and all.
    """
    meant = {fold(key): key for key in SUBJECTS} | {"callback": "callbacks", fold(CALLBACKS): "callbacks"}
    meant |= {fold(subject.kind): key for key, subject in SUBJECTS.items() if subject.kind}
    word = fold(written.replace(" ", "_"))
    if word in meant:
        return meant[word]
    near = difflib.get_close_matches(word, meant, n=1)
    hint = f" Did you mean {meant[near[0]]!r}?" if near else ""
    raise ArgumentValueError(f"{written!r} is no kind of plugin.{hint} The kinds are {', '.join(SUBJECTS)}.")
