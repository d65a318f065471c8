"""Lazy faces: modules whose public names are imported when they are first read.

``import poplin`` must import no torch, and a class of a separately installed package must be importable from the
path that users know. A face is a module whose ``__getattr__`` (PEP 562) does both: its own names stand in a table,
those of known packages in ``registry/known.toml``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from poplin.errors import MissingPackageError


def lazy_face(
    face: str, own: Mapping[str, str], make: Mapping[str, Callable[[], Any]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for the module called ``face``.

    Args:
        face: the module's name.
        own: public name → ``module:attr``.
        make: public name → a function that makes the object, for names that are no module's attribute.

    Returns:
        The two functions, to be assigned at the end of the module.
    """
    makers = make or {}

    def __getattr__(name: str) -> Any:
        if name in own:
            module, _, attribute = own[name].partition(":")
            value = getattr(importlib.import_module(module), attribute) if attribute else importlib.import_module(module)
        elif name in makers:
            value = makers[name]()
        elif (home := _known_class(face, name)) is not None:
            return _from_package(face, name, *home)
        else:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        setattr(sys.modules[face], name, value)  # the next read is a plain one
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[face]), *own, *makers, *_known_classes(face)})

    return __getattr__, __dir__


def _known_classes(face: str) -> Mapping[str, Any]:
    from poplin.registry import known

    return known.classes(face)


def _known_class(face: str, name: str) -> tuple[str, str] | None:
    if name.startswith("_"):
        return None
    home = _known_classes(face).get(name)
    return (home.distribution, home.target) if home is not None else None


def _from_package(face: str, name: str, distribution: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or module.partition(".")[0] != error.name.partition(".")[0]:
            raise  # the package is here, and something that it needs is not
        raise MissingPackageError(
            f"{face}.{name} is offered by the package {distribution!r}, which is not installed. "
            f"Install it: pip install {distribution}",
            name=name,
            path=face,
        ) from None
