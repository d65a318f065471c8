"""Roles that a class takes and its distribution doesn't declare: it is never asked for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from poplin.registry.kinds import KINDS


def undeclared(kind: str, target: Any, declared: Iterable[str]) -> list[str]:
    """The roles of ``target``, a class, that are not among ``declared``, the roles in the metadata of its plugin."""
    taken, declared = getattr(target, "roles", ()), set(declared)
    return [role for role in KINDS[kind].roles if role in taken and role not in declared]


def remark(kind: str, roles: Iterable[str]) -> str:
    """What to say about them; nothing if there are none."""
    entries = " and ".join(repr(role) for role in roles)
    if not entries:
        return ""
    return (
        f'its class takes the role {entries}, and the metadata has no such entry point under "{KINDS[kind].group}", so '
        "it is never asked"
    )
