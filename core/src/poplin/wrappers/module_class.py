"""The classes that are made for wrapped modules: what one must do decides which members it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from poplin.wrappers.methods import (
    another,
    call,
    call_compiled,
    call_tracked,
    cautioned_method,
    marked_method,
    on_compiled,
    on_inside,
    watched_method,
)
from poplin.wrappers.sharing import delegates, is_method, looking_like, own_members

#: The wrapper's own names.
FIELDS = ("module", "device", "dtype", "mark_forward_method", "_forward_module")
#: Methods by which hooks get around a forward.
_HOOKS = (
    "register_forward_pre_hook",
    "register_forward_hook",
    "register_full_backward_pre_hook",
    "register_full_backward_hook",
    "register_backward_hook",
)


class Shape(NamedTuple):
    """What a made class must do."""

    #: Forwards go through precision and strategy. If not, the class has no ``__call__`` and costs nothing.
    through: bool
    #: Methods that go the same way.
    marked: frozenset[str]
    #: Whether unmarked methods are watched.
    guarded: bool
    #: Whether the user's object has attributes of the wrapper's names: its code then runs on the object itself.
    clashes: bool
    #: Whether the object may have got another class by setup, whose members the made class lacks.
    follows: bool
    #: Whether the user's own ``torch.compile`` goes around a forward. All other methods then run on what was compiled,
    #: uncompiled, as those of a compiled module do.
    compiled: bool
    #: Whether unmarked methods that run outside of the precision are warned about.
    cautious: bool


def namespace(user_class: type, shape: Shape, follow: Callable[[Any, str], Any]) -> dict[str, Any]:
    """The members of the made class of a wrapped ``user_class``; ``follow`` finds those of a class that came later."""
    methods = {name: value for name, value in own_members(user_class, nn.Module) if is_method(value)}
    members: dict[str, Any] = {}
    if shape.clashes or shape.compiled:
        members.update(delegates(user_class, nn.Module))
    if shape.compiled:
        members.update({name: on_inside(name, value) for name, value in methods.items()})
        members.update({name: on_compiled(name) for name in _HOOKS})
    elif shape.guarded:
        members.update({name: watched_method(name, value) for name, value in methods.items()})
    elif shape.cautious and not shape.clashes:
        plain = {name: value for name, value in methods.items() if inspect.isfunction(value)}
        members.update({name: cautioned_method(name, value) for name, value in plain.items() if _runs_at_once(value)})
    if shape.through or shape.compiled:
        forward = call_compiled if shape.compiled else call_tracked if shape.guarded else call
        members["__call__"] = forward
        members["forward"] = looking_like(inspect.getattr_static(user_class, "forward"), another(forward), "forward")
    for name in shape.marked if not shape.compiled else ():
        members[name] = marked_method(name, inspect.getattr_static(user_class, name, None), shape.guarded)
    if shape.follows:
        members["__getattr__"] = follow
    for name in FIELDS:
        members.pop(name, None)
    return members


def _runs_at_once(function: Any) -> bool:
    return not (inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function))
