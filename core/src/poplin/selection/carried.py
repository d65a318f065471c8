"""What a strategy object carries of its own: accelerator, devices, precision, ... fixed by the user on the object.

Binding a strategy overwrites these attributes by the chosen ones. A strategy object that served one Fabric can
serve the next, so what was its own before is remembered here.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

from poplin.extension import Extension
from poplin.selection.request import Source, describe

#: Attributes of a strategy that are explicit sources, if they aren't None.
FIELDS = ("accelerator", "parallel_devices", "cluster_environment", "precision", "checkpoint_io", "launcher")

# strategy -> {field: (its own value, what binding made of it)}
_BOUND: MutableMapping[Any, dict[str, tuple[Any, Any]]] = WeakIdKeyDictionary()


class Carried:
    """The things that one strategy brings along."""

    def __init__(self, values: dict[str, Any], owner: str) -> None:
        self._values = values
        self._owner = owner

    def source(self, field: str) -> Source | None:
        """What it carries in ``field`` as an explicit source, or None."""
        value = self._values.get(field)
        if value is None:
            return None
        return Source(value, f"the {self._owner} object carries {field}={describe(value)}")

    def value(self, field: str) -> Any:
        """What it carries in ``field``, or None."""
        return self._values.get(field)

    def values(self) -> list[Any]:
        """All that it carries."""
        return list(self._values.values())


def carried_by(strategy: Any) -> Carried:
    """What ``strategy`` brings of its own; nothing for what is no such object."""
    if not isinstance(strategy, Extension):
        return Carried({}, "")
    bound = _BOUND.get(strategy, {})
    values = {}
    for field in FIELDS:
        value = _read(strategy, field)
        if field in bound and _unchanged(value, bound[field][1]):
            value = bound[field][0]
        if value is not None and value != []:
            values[field] = value
    return Carried(values, type(strategy).__name__)


def remember_bound(strategy: Any, own: Carried) -> None:
    """The strategy has been bound: what it carries now is the selection's, and ``own`` is what it had before."""
    _BOUND[strategy] = {field: (own.value(field), _read(strategy, field)) for field in FIELDS}


def _read(strategy: Any, field: str) -> Any:
    try:
        value = getattr(strategy, field, None)
    except Exception:  # a property that has no answer before the strategy is bound
        return None
    return list(value) if field == "parallel_devices" and isinstance(value, (list, tuple)) else value


def _unchanged(value: Any, bound: Any) -> bool:
    return value is bound or (isinstance(bound, list) and isinstance(value, list) and bool(value == bound))
