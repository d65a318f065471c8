"""What would be chosen, and why, without making anything."""

from __future__ import annotations

from typing import Any

from poplin.errors import PoplinError
from poplin.selection.binding import as_before, given_objects
from poplin.selection.request import Request
from poplin.selection.resolve import resolve
from poplin.selection.trace import Trace


def explain_request(request: Request | None = None, **arguments: Any) -> str:
    """The trace of a selection as text; nothing is bound, launched or left behind.

    Args:
        request: what was asked for; or None, and the arguments of :meth:`Request.read` by keyword.
        arguments: see ``request``.

    Returns:
        The decisions, and for a request that is refused those up to the refusal, and the error.
    """
    trace, error = explained(request, **arguments)
    if error is None:
        return trace.render()
    decided = f"{trace.render()}\n\n" if len(trace) else ""
    return f"{decided}refused ({type(error).__name__}): {error}"


def explained(request: Request | None = None, **arguments: Any) -> tuple[Trace, PoplinError | None]:
    """:func:`explain_request` in its parts: the decisions, and the error of a request that is refused."""
    trace = Trace()
    try:
        request = Request.read(**arguments) if request is None else request
        with as_before(given_objects(request), always=True):
            resolve(request, trace)
    except PoplinError as error:
        return trace, error
    return trace, None
