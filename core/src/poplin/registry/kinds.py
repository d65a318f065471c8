"""The kinds of extension. A new kind is a row here, a folder with its interface, and a hook."""

from __future__ import annotations

from typing import NamedTuple

from poplin.errors import ArgumentValueError


class Kind(NamedTuple):
    """One kind of extension."""

    #: Its name, the argument of ``register`` and the first part of ``kind/name``.
    name: str
    #: What one of them is called in messages.
    singular: str
    #: The entry-point group in package metadata.
    group: str
    #: The hook that returns the offers of a plugin.
    hook: str
    #: ``module:class`` of the interface.
    interface: str
    #: The public module of the kind.
    face: str
    #: ``module`` of the built-in plugin.
    builtin: str
    #: Entry-point names that are roles ("ask me"), not offers.
    roles: tuple[str, ...]


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "accelerators",
            "accelerator",
            "poplin.accelerators",
            "poplin_accelerators",
            "poplin.accelerators.accelerator:Accelerator",
            "poplin.accelerators",
            "poplin.accelerators.builtin",
            ("auto", "gpu"),
        ),
        Kind(
            "strategies",
            "strategy",
            "poplin.strategies",
            "poplin_strategies",
            "poplin.strategies.strategy:Strategy",
            "poplin.strategies",
            "poplin.strategies.builtin",
            ("auto",),
        ),
        Kind(
            "precisions",
            "precision",
            "poplin.precisions",
            "poplin_precisions",
            "poplin.precision.precision:Precision",
            "poplin.precision",
            "poplin.precision.builtin",
            (),
        ),
        Kind(
            "launchers",
            "launcher",
            "poplin.launchers",
            "poplin_launchers",
            "poplin.launchers.launcher:Launcher",
            "poplin.launchers",
            "poplin.launchers.builtin",
            (),
        ),
        Kind(
            "environments",
            "environment",
            "poplin.environments",
            "poplin_environments",
            "poplin.environments.environment:ClusterEnvironment",
            "poplin.environments",
            "poplin.environments.builtin",
            ("auto",),
        ),
        Kind(
            "loggers",
            "logger",
            "poplin.loggers",
            "poplin_loggers",
            "poplin.loggers.logger:Logger",
            "poplin.loggers",
            "poplin.loggers.builtin",
            (),
        ),
        Kind(
            "checkpoint_ios",
            "checkpoint IO",
            "poplin.checkpoint_ios",
            "poplin_checkpoint_ios",
            "poplin.checkpoint.checkpoint_io:CheckpointIO",
            "poplin.checkpoint",
            "poplin.checkpoint.builtin",
            ("auto",),
        ),
    )
}

#: Plugins that offer no name and implement selection and lifecycle hooks.
AMBIENT = "ambient"
AMBIENT_GROUP = "poplin.ambient"
#: Functions that return callbacks for every Fabric. The last two are read for packages that exist already.
CALLBACKS = "callbacks_factory"
CALLBACK_GROUPS = (
    "callbacks_factory",
    "poplin.callbacks_factory",
    "lightning.fabric.callbacks_factory",
    "lightning_fabric.callbacks_factory",
)


#: What each entry-point group that is read declares.
GROUPS: dict[str, str] = {
    **{kind.group: kind.name for kind in KINDS.values()},
    AMBIENT_GROUP: AMBIENT,
    **dict.fromkeys(CALLBACK_GROUPS, CALLBACKS),
}


def get_kind(name: str) -> Kind:
    """The kind called ``name`` (plural or singular).

    Raises:
        ArgumentValueError: there is none; the message lists all.
    """
    for kind in KINDS.values():
        if name in (kind.name, kind.singular):
            return kind
    raise ArgumentValueError(f"{name!r} is no kind of extension. The kinds are {', '.join(KINDS)}.")
