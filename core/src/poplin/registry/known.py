"""Packages that are known to exist (``known.toml``): for the hint how to install one, and for the lazy faces.

Known is not installed: nothing here says what can be used, only what pip could bring.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from poplin.registry.names import fold


class Home(NamedTuple):
    """Where a public class of a known package stands."""

    distribution: str
    #: ``module:attr``
    target: str


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("known.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def packages() -> tuple[str, ...]:
    """Names of the known distributions."""
    return tuple(_table())


@cache
def _offering() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """(Kind, folded name) → the name as it is registered, and the distribution."""
    offering: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for distribution, package in _table().items():
        for kind, names_of_kind in package.get("names", {}).items():
            for name in names_of_kind:
                offering.setdefault((kind, fold(name)), []).append((name, distribution))
    return offering


def packages_offering(kind: str, name: str) -> list[str]:
    """Known distributions that offer ``name``."""
    return [distribution for _, distribution in _offering().get((kind, fold(name)), [])]


def names(kind: str) -> list[str]:
    """All names of a kind that known packages offer."""
    return sorted({name for (of_kind, _), offers in _offering().items() if of_kind == kind for name, _ in offers})


def package_for_device(device_type: str) -> str:
    """The distribution to install for a device type that torch sees and no installed plugin serves."""
    general = ""
    for distribution, package in _table().items():
        device_types = package.get("device_types", ())
        if device_type in device_types:
            return distribution
        if "*" in device_types:
            general = distribution
    return general


def packages_for_role(kind: str, role: str) -> list[str]:
    """Known distributions to install for a role that nothing installed can take."""
    return [distribution for distribution, package in _table().items() if f"{kind}/{role}" in package.get("roles", ())]


@cache
def classes(face: str) -> Mapping[str, Home]:
    """Public name → home, of what known packages put into the module ``face``."""
    return {
        name: Home(distribution, target)
        for distribution, package in _table().items()
        for name, target in package.get("classes", {}).get(face, {}).items()
    }


@cache
def faces() -> tuple[str, ...]:
    """The modules into which known packages put names."""
    return tuple(sorted({face for package in _table().values() for face in package.get("classes", {})}))
