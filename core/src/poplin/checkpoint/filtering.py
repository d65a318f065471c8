"""The filter of a save: which entries of an object's state are kept."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from poplin.checkpoint.format import dotted
from poplin.checkpoint.items import Item
from poplin.checkpoint.tree import Path
from poplin.errors import ArgumentTypeError, ArgumentValueError, PossibleUserWarning

#: {key of the state: whether an entry (name, value) of it is kept}
Filter = Mapping[str, Callable[[str, Any], bool]]


def check_filter(filter: Any, state: Mapping[str, Any], items: Mapping[Path, Item]) -> None:
    if filter is None:
        return
    if not isinstance(filter, Mapping):
        raise ArgumentTypeError(
            f"filter is a dictionary {{key of the state: function(name, value) -> bool}}, and this is a "
            f"{type(filter).__name__}."
        )
    known = {dotted(path) for path in items} | {dotted((key,)) for key in state}
    for key, keep in filter.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=2)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise ArgumentValueError(
                f"The filter has the key {key!r}, which is not in the state ({', '.join(sorted(known))}).{hint}"
            )
        if not callable(keep):
            raise ArgumentTypeError(
                f"The filter for {key!r} is a function(name, value) -> bool, and this is a {type(keep).__name__}."
            )
        _check_signature(key, keep)
        value = state.get(key)
        if not any(dotted(path) == key for path in items) and not isinstance(value, Mapping):
            raise ArgumentTypeError(
                f"The filter for {key!r} has nothing to choose from: the state has a {type(value).__name__} there."
            )


def _check_signature(key: str, keep: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(keep)
    except (TypeError, ValueError):  # written in C: it is called as it is
        return
    try:
        signature.bind("name", None)
    except TypeError as error:
        raise ArgumentTypeError(
            f"The filter for {key!r} is called with two arguments, the name of an entry and its value, and its "
            f"signature is {signature} ({error}): write it as a function(name, value) -> bool."
        ) from None


def filtered(tree: Any, filter: Filter | None, items: Mapping[Path, Item]) -> Any:
    if not filter:
        return tree
    tree = dict(tree)
    paths = {dotted(path): path for path in items}
    for key, keep in filter.items():
        tree = _filtered_at(tree, paths.get(key, (key,)), key, keep)
    return tree


def _filtered_at(tree: Any, path: Path, key: str, keep: Callable[[str, Any], bool]) -> Any:
    if path:
        inner = _filtered_at(tree[path[0]], path[1:], key, keep)
        if isinstance(tree, Mapping):
            return {**tree, path[0]: inner}
        return type(tree)(inner if index == path[0] else item for index, item in enumerate(tree))
    if not isinstance(tree, Mapping):
        raise ArgumentTypeError(f"The filter for {key!r} has nothing to choose from: its state is no dictionary.")
    kept = OrderedDict((name, value) for name, value in tree.items() if keep(name, value))
    if isinstance(tree, OrderedDict) and hasattr(tree, "_metadata"):
        kept._metadata = tree._metadata  # type: ignore[attr-defined]
    if tree and not kept:
        warnings.warn(f"The filter leaves nothing of {key!r} to be saved.", PossibleUserWarning, stacklevel=2)
    return kept
