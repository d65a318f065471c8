"""How what a script registered travels to the workers."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from poplin.errors import LaunchError
from poplin.registry.manager import Loaded
from poplin.registry.runtime import Registration


@dataclass(frozen=True)
class RuntimeTable:
    """What a script registered, ready to travel: a label and a pickle for each."""

    entries: tuple[tuple[str, bytes], ...] = ()


def pack(
    registrations: Iterable[Registration],
    objects: Iterable[tuple[Any, Loaded]],
    dumps: Callable[[Any], bytes] = pickle.dumps,
) -> RuntimeTable:
    """Pickle each registration by itself.

    Raises:
        LaunchError: one can't be pickled; it is named.
    """
    entries: list[tuple[str, bytes]] = []
    for one in registrations:
        entries.append(_pickled(f"{one.kind}/{one.name}", (one.kind, one.name, one.offer, one.description), dumps))
    for plugin, loaded in objects:
        carried = ("module", plugin.__name__) if isinstance(plugin, ModuleType) else ("object", plugin)
        entries.append(_pickled(loaded.provider.target, carried, dumps))
    return RuntimeTable(tuple(entries))


def unpack(
    table: RuntimeTable,
    present: Collection[str],
    register_name: Callable[[str, str, Any, str], None],
    register_object: Callable[[Any], None],
) -> None:
    """Register again what :func:`pack` packed.

    Args:
        table: what was packed.
        present: labels of plugin objects that are registered here already, by the script that this process read too.
        register_name: takes in a name.
        register_object: takes in a plugin object.

    Raises:
        LaunchError: one can't be had in this process; it is named.
    """
    for label, data in table.entries:
        if label in present:
            continue
        try:
            carried = pickle.loads(data)
            if len(carried) == 4:
                register_name(*carried)
            else:
                form, plugin = carried
                register_object(importlib.import_module(plugin) if form == "module" else plugin)
        except Exception as error:
            raise LaunchError(
                f"The registration {label!r} could not be repeated in this worker ({type(error).__name__}: {error}). "
                "Define what is registered at the top level of a module that workers can import, outside of "
                "`if __name__ == '__main__':`."
            ) from error


def _pickled(label: str, carried: Any, dumps: Callable[[Any], bytes]) -> tuple[str, bytes]:
    try:
        return label, dumps(carried)
    except Exception as error:
        raise LaunchError(
            f"The registration {label!r} can't be sent to the workers: {type(error).__name__}: {error}. Register a "
            "class or function from the top level of a module (no lambda, nothing defined inside a function), or "
            "register it by 'module:Class'."
        ) from error
