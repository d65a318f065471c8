"""Offers that are imported when they are asked for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from poplin.errors import ArgumentTypeError, ArgumentValueError

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class Lazy:
    """A class or function, by ``module:attr`` or as it is, with the arguments that it is called with.

    Attributes:
        target: ``module:attr``, or the object itself.
        presets: keyword arguments of the call.
    """

    __slots__ = ("presets", "target")

    def __init__(self, target: str | Callable[..., Any], presets: Mapping[str, Any]) -> None:
        if isinstance(target, str):
            if not _TARGET.fullmatch(target):
                raise ArgumentValueError(f"{target!r} is no target: write 'package.module:Class'.")
        elif not callable(target):
            raise ArgumentTypeError(f"{target!r} can't be offered: give a class, a function or 'package.module:Class'.")
        self.target = target
        self.presets = dict(presets)

    def load(self) -> Any:
        """The object behind the target; its module is imported now, if it wasn't before."""
        return resolve(self.target) if isinstance(self.target, str) else self.target

    def __call__(self) -> Any:
        """What the target makes of the presets, and of nothing else."""
        return self.load()(**self.presets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and (self.target, self.presets) == (other.target, other.presets)

    def __hash__(self) -> int:
        return hash(self.target)

    def __repr__(self) -> str:
        presets = "".join(f", {name}={value!r}" for name, value in self.presets.items())
        return f"lazy({self.target!r}{presets})"


def lazy(target: str, /, **presets: Any) -> Lazy:
    """Offer what stands at ``module:attr``, without importing it now.

    Args:
        target: ``package.module:Class``.
        **presets: keyword arguments that the class is constructed with when the name is looked up.

    Raises:
        ArgumentValueError: ``target`` has another form.
    """
    return Lazy(target, presets)


def resolve(target: str) -> Any:
    """The object at ``module:attr.attr``, or the module itself."""
    module, _, attributes = target.partition(":")
    value: Any = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        value = getattr(value, attribute)
    return value
