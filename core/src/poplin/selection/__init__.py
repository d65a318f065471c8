"""From arguments to live objects: a request becomes a selection, and each decision on the way is traced.

``Request.read`` looks at arguments and environment variables, ``select`` makes a ``Selection`` of them, and
``explain_request`` tells what would be chosen and why, without making anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poplin.faces import lazy_face
from poplin.selection.request import Request
from poplin.selection.result import Selection
from poplin.selection.trace import Decision, PassedOver, Trace

if TYPE_CHECKING:
    from poplin.selection.binding import released_on_error as released_on_error
    from poplin.selection.binding import select as select
    from poplin.selection.explain import explain_request as explain_request
    from poplin.selection.others import reader_for as reader_for
    from poplin.selection.others import select_loggers as select_loggers

__all__ = [
    "Decision",
    "PassedOver",
    "Request",
    "Selection",
    "Trace",
    "explain_request",
    "reader_for",
    "released_on_error",
    "select",
    "select_loggers",
]

# what needs torch is read lazily: interfaces name these types, and the command line must work without torch
_lazy, __dir__ = lazy_face(
    __name__,
    {
        "explain_request": "poplin.selection.explain:explain_request",
        "reader_for": "poplin.selection.others:reader_for",
        "released_on_error": "poplin.selection.binding:released_on_error",
        "select": "poplin.selection.binding:select",
        "select_loggers": "poplin.selection.others:select_loggers",
    },
)


def __getattr__(name: str) -> Any:
    return _lazy(name)
