"""What ``poplin plugins new`` can write, and what its templates need to know."""

from __future__ import annotations

from typing import NamedTuple

from poplin.registry.kinds import AMBIENT_GROUP, CALLBACK_GROUPS, KINDS


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
