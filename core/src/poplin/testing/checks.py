"""One check of a compliance suite: a method whose body runs in this process, or in each of several ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poplin.testing.case import Case

#: As many processes as the suite says (``world_size``).
SEVERAL = -1

Body = Callable[[Any, "Case"], None]


@dataclass(frozen=True)
class Requirement:
    """What is known of a check.

    Attributes:
        method: name of the method of the suite.
        member: the member of the interface that it is about.
        processes: how many ranks run it; 0 is this very process, ``SEVERAL`` the suite's ``world_size``.
        alone: whether it has a launch of its own, because it leaves its processes in no state for another check.
        body: runs in each rank.
        doc: what is required, in a sentence.
    """

    method: str
    member: str
    processes: int
    alone: bool
    body: Body
    doc: str

    @property
    def title(self) -> str:
        """The name of the check, in words."""
        return self.method.removeprefix("test_").replace("_", " ")


def requirement(member: str, *, processes: int = 1, alone: bool = False) -> Callable[[Body], Callable[[Any], None]]:
    """Make a method ``test_…(self, case)`` of a suite a check that pytest runs as ``test_…(self)``.

    Args:
        member: the member of the interface that it is about, ``"Strategy.all_reduce"`` for instance.
        processes: how many ranks run the body, each with its own ``case``: 0 is the process of the tests itself,
            1 a process of its own, ``SEVERAL`` as many as the suite's ``world_size``.
        alone: give it a launch of its own.
    """

    def decorate(body: Body) -> Callable[[Any], None]:
        @functools.wraps(body)
        def test(self: Any) -> None:
            self.settle(about)

        about = Requirement(body.__name__, member, processes, alone, body, " ".join((body.__doc__ or "").split()))
        del test.__wrapped__  # pytest would take `case` for a fixture
        test.requirement = about  # type: ignore[attr-defined]
        return test

    return decorate


def requirements(suite: type) -> list[Requirement]:
    """The checks of a suite, those of the last base first, each in the order of its source."""
    found: dict[str, Requirement] = {}
    for base in reversed(suite.__mro__):
        for name, value in vars(base).items():
            if name.startswith("test_") and hasattr(value, "requirement"):
                found[name] = value.requirement
            elif name in found:
                del found[name]  # overridden by a plain test, which pytest runs by itself
    return list(found.values())
