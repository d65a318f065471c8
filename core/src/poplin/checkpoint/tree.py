"""The nested state that the user passes: where the objects in it stand, and how values get back into it."""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.checkpoint.format import dotted
from poplin.errors import ArgumentValueError

#: The keys that lead to a place in the state.
Path = tuple[Any, ...]


def is_stateful(value: Any) -> bool:
    """Whether ``value`` says itself what is to be saved of it."""
    if isinstance(value, (type, str, int, float, Tensor)) or value is None:
        return False
    try:
        return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    except Exception:  # a dict whose attributes are its items, say, may raise a KeyError
        return False


def is_object(value: Any) -> bool:
    """Whether ``value`` becomes a state dict: a module, an optimizer, or anything stateful."""
    return isinstance(value, (nn.Module, Optimizer)) or is_stateful(value)


def children(value: Any) -> list[tuple[Any, Any]] | None:
    """Keys and values in a container, or None if ``value`` is none.

    Containers are mappings, lists, tuples, namespaces and dataclass instances.
    """
    if isinstance(value, Tensor) or is_object(value):
        return None
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return list(vars(value).items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def find_objects(value: Any, path: Path = (), inside: tuple[int, ...] = ()) -> Iterator[tuple[Path, Any]]:
    """Each object in ``value`` with its path.

    Raises:
        ArgumentValueError: a container contains itself.
    """
    if is_object(value):
        yield path, value
        return
    items = children(value)
    if items is None:
        return
    if id(value) in inside:
        raise ArgumentValueError(f"The state contains itself, at {dotted(path)!r}. Nothing was done.")
    for key, item in items:
        yield from find_objects(item, (*path, key), (*inside, id(value)))


def holds_objects(value: Any) -> bool:
    """Whether there is an object in ``value``. A container without any is a plain value."""
    return next(find_objects(value), None) is not None


def with_states(value: Any, states: Mapping[Path, Any], path: Path = ()) -> Any:
    """``value`` with the state of each object in its place, and namespaces and dataclasses as dicts.

    A container in which something changes is made anew; the user's own is left as it is.
    """
    if path in states:
        return states[path]
    items = children(value)
    if items is None:
        return value
    done = [(key, with_states(item, states, (*path, key))) for key, item in items]
    changed = any(new is not old for (_, new), (_, old) in zip(done, items, strict=True))
    if isinstance(value, Mapping):
        return dict(done) if changed else value
    if isinstance(value, list):
        return [item for _, item in done] if changed else value
    if isinstance(value, tuple):
        return _same_kind_of_tuple(value, [item for _, item in done]) if changed else value
    return dict(done)


def put_back(value: Any, saved: Any) -> Any:
    """Put the plain values of ``saved`` that ``value`` asks for into it; its objects have been restored.

    Returns:
        What is to stand in the place of ``value``: itself, if it could be changed in place.
    """
    changed: dict[Any, Any] = {}
    for key, item in children(value) or ():
        if has_item(saved, key):
            new = _in_place_of(item, get_item(saved, key))
            if new is not item:
                changed[key] = new
    return _with_changes(value, changed)


def _in_place_of(item: Any, saved: Any) -> Any:
    if is_object(item):
        return item
    return put_back(item, saved) if holds_objects(item) else _replaced(item, saved)


def can_be_put_back(value: Any) -> bool:
    """Whether plain values can be put into the container ``value`` itself."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return False
    return isinstance(value, MutableMapping) or not isinstance(value, Mapping)


def remainder(value: Any, saved: Any) -> Any:
    """What of ``saved`` has no place in the container ``value``: a dict, empty if there is nothing."""
    if not isinstance(saved, Mapping):
        return {}
    here = dict(children(value) or ())
    rest: dict[Any, Any] = {}
    for key, item in saved.items():
        if key not in here:
            rest[key] = item
        elif isinstance(item, Mapping) and children(here[key]) is not None and holds_objects(here[key]):
            nested = remainder(here[key], item)
            if nested:
                rest[key] = nested
    return rest


def has_item(saved: Any, key: Any) -> bool:
    """Whether ``saved``, a container in a checkpoint, has ``key``."""
    if isinstance(saved, Mapping):
        return key in saved
    return isinstance(saved, (list, tuple)) and isinstance(key, int) and key < len(saved)


def get_item(saved: Any, key: Any) -> Any:
    """The item of ``saved`` at ``key``."""
    return saved[key]


def _replaced(old: Any, new: Any) -> Any:
    """``new`` in the place of ``old``: in the very container that stands there, where that can be refilled."""
    if isinstance(old, MutableMapping) and isinstance(new, Mapping):
        old.clear()
        old.update(new)
        return old
    if isinstance(old, list) and isinstance(new, list):
        old[:] = new
        return old
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        return _same_kind_of_tuple(old, list(new))
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return new.to(old.device)
    items = children(old)
    if items is not None and isinstance(new, Mapping) and can_be_put_back(old):  # a namespace or a dataclass
        for key, item in new.items():
            setattr(old, str(key), _replaced(getattr(old, str(key), None), item))
        return old
    return new


def _with_changes(value: Any, changed: dict[Any, Any]) -> Any:
    if not changed:
        return value
    if isinstance(value, tuple):
        return _same_kind_of_tuple(value, [changed.get(index, item) for index, item in enumerate(value)])
    assign: Callable[[Any, Any], None] = (
        value.__setitem__ if isinstance(value, (MutableMapping, list)) else lambda key, item: setattr(value, key, item)
    )
    for key, item in changed.items():
        assign(key, item)
    return value


def _same_kind_of_tuple(old: tuple[Any, ...], items: list[Any]) -> Any:
    return type(old)(*items) if hasattr(old, "_fields") else tuple(items)
