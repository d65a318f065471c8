"""Checks that hold for every kind of extension."""

from __future__ import annotations

import importlib
import inspect
import pickle
from typing import Any

from poplin.registry.kinds import KINDS
from poplin.testing.case import Case, error_or_none
from poplin.testing.checks import requirement
from poplin.testing.compliance import Compliance


class Common(Compliance):
    """Checks of what an object of any kind must be."""

    def interface(self) -> type[Any]:
        """The interface of the kind."""
        module, _, name = KINDS[self.kind].interface.partition(":")
        interface: type[Any] = getattr(importlib.import_module(module), name)
        return interface

    @requirement("Extension")
    def test_it_is_made_without_arguments_and_is_of_its_kind(self, case: Case) -> None:
        """The offer makes an object of the kind's interface, a new one each time."""
        one, other = self.create(), self.create()
        wanted = self.interface()
        fits = isinstance(one, wanted) or (self.kind == "loggers" and callable(getattr(one, "log_metrics", None)))
        case.expect(fits, f"an object of {wanted.__module__}.{wanted.__qualname__}", type(one))
        case.expect(one is not other, "a new object each time", "the same one")

    @requirement("Extension")
    def test_its_members_take_what_the_interface_says(self, case: Case) -> None:
        """Each overridden member can be called with the arguments of the interface, by position and by name."""
        made = type(self.create())
        wrong = [told for name in vars(self.interface()) if (told := _misfit(made, self.interface(), name))]
        case.expect(not wrong, "members that take the interface's arguments", "; ".join(wrong))

    @requirement("Extension")
    def test_it_can_be_sent_to_another_process_before_use(self, case: Case) -> None:
        """An object that isn't in use pickles, because launchers send it to the processes that they start."""
        made = self.create()
        error = error_or_none(lambda: pickle.loads(pickle.dumps(made)))
        case.expect(error is None, "an object that pickles before it is used", repr(error))

    @requirement("Extension.teardown")
    def test_teardown_needs_no_use(self, case: Case) -> None:
        """``teardown`` of an object that was never used does nothing."""
        made = self.create()
        if not hasattr(made, "teardown"):
            case.not_claimed("it has no teardown")
        error = error_or_none(made.teardown)
        case.expect(error is None, "teardown() without an error", repr(error))


def _misfit(made: type[Any], interface: type[Any], name: str) -> str:
    """What is wrong with an overridden method; empty if nothing is."""
    wanted, found = inspect.getattr_static(interface, name), inspect.getattr_static(made, name, None)
    if name.startswith("_") or found is wanted or found is None:
        return ""
    wanted, found = getattr(wanted, "__func__", wanted), getattr(found, "__func__", found)
    if not inspect.isfunction(wanted):
        return ""
    if not callable(found):
        return f"{name} is no method"
    try:
        has, needs = inspect.signature(found).parameters, inspect.signature(wanted).parameters
    except (TypeError, ValueError):
        return ""
    kinds = {parameter.kind for parameter in has.values()}
    takes_names, takes_more = inspect.Parameter.VAR_KEYWORD in kinds, inspect.Parameter.VAR_POSITIONAL in kinds
    for needed in needs.values():
        variadic = needed.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        if not variadic and needed.name not in has and not takes_names and not (takes_more and needed.name == "self"):
            return f"{name}() takes no {needed.name!r}"
    extra = [
        parameter.name
        for parameter in has.values()
        if parameter.name not in needs and parameter.default is parameter.empty and parameter.kind.name in _NEEDED
    ]
    return f"{name}() needs {', '.join(extra)}, which the interface does not give" if extra else ""


_NEEDED = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
