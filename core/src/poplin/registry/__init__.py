"""The plugin registry: what is installed, what a name means, and who is asked.

Nothing here imports torch, and nothing imports a plugin that was not asked for. A plugin's author needs
:func:`hookimpl` and :func:`lazy` only; a script, :func:`register`.
"""

from __future__ import annotations

from poplin.registry import hookspecs as hookspecs
from poplin.registry import known as known
from poplin.registry.controls import block
from poplin.registry.face import (
    ambient,
    callback_factories,
    control_hits,
    failures,
    find,
    install_runtime_table,
    is_strict,
    kinds_offering,
    locate,
    names,
    provider_of,
    refresh,
    register,
    role_candidates,
    rows,
    runtime_table,
    undeclared_roles,
    unregister,
)
from poplin.registry.lazy import Lazy, lazy
from poplin.registry.markers import hookimpl
from poplin.registry.records import Answer, CallbackFactory, Failure, Found, Provider, Row
from poplin.registry.travel import RuntimeTable

__all__ = [
    "Answer",
    "CallbackFactory",
    "Failure",
    "Found",
    "Lazy",
    "Provider",
    "Row",
    "RuntimeTable",
    "ambient",
    "block",
    "callback_factories",
    "control_hits",
    "failures",
    "find",
    "hookimpl",
    "hookspecs",
    "install_runtime_table",
    "is_strict",
    "kinds_offering",
    "known",
    "lazy",
    "locate",
    "names",
    "provider_of",
    "refresh",
    "register",
    "role_candidates",
    "rows",
    "runtime_table",
    "undeclared_roles",
    "unregister",
]
