"""Whether a plugin was written for this version of the core: read from its metadata, before any import."""

from __future__ import annotations

import re
from collections.abc import Iterable

from poplin.registry.names import fold
from poplin.registry.records import CORE

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def incompatibility(distribution: str, requires: Iterable[str], core_version: str) -> str:
    """Why this core is not the one that a distribution requires; empty if it is.

    Args:
        distribution: its name.
        requires: its requirements, as in its metadata.
        core_version: version of the running core.
    """
    for text in requires_of(CORE, requires):
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
        except (InvalidRequirement, ValueError, KeyError) as error:
            return f"its requirement {text!r} can't be read ({error})"
        if not requirement.specifier.contains(core_version, prereleases=True):
            return (
                f"it requires {CORE}{requirement.specifier}, and {CORE} {core_version} is installed. Install versions "
                f"that fit: pip install -U {distribution} {CORE}"
            )
    return ""


def requires_of(name: str, requires: Iterable[str]) -> list[str]:
    """Those of a distribution's requirements that are about the distribution ``name``."""
    wanted = fold(name)
    return [text for text in requires if (match := _NAME.match(text)) and fold(match[1]) == wanted]
