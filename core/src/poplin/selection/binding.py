"""The last step of the selection: each chosen object learns of the run."""

from __future__ import annotations

from typing import Any

from poplin.errors import PoplinError
from poplin.extension import Extension
from poplin.selection.carried import carried_by, remember_bound
from poplin.selection.common import guarded, label_of
from poplin.selection.request import Request
from poplin.selection.resolve import resolve
from poplin.selection.result import Selection
from poplin.selection.trace import Trace


def select(request: Request) -> Selection:
    """Choose, check and bind the parts of a run. Starts nothing; what raises leaves nothing behind.

    Raises:
        PoplinError: no run can be made of the request; the message says why, and what to write instead.
    """
    selection = resolve(request, Trace())
    own = carried_by(selection.strategy)
    bind_all(selection.parts(), selection)
    remember_bound(selection.strategy, own)
    return selection


def bind_all(parts: tuple[Extension, ...], selection: Selection) -> None:
    """Bind ``parts`` in order. If one raises, those before it and itself are torn down, and are as they were before."""
    before: list[tuple[Extension, dict[str, Any] | None]] = []
    try:
        for part in parts:
            before.append((part, dict(vars(part)) if hasattr(part, "__dict__") else None))
            guarded(f"{label_of(part)}: bind() of {type(part).__name__}", part.bind, selection)
    except BaseException as error:
        for part, attributes in reversed(before):
            _undo(part, attributes, error)
        raise


def _undo(part: Extension, attributes: dict[str, Any] | None, error: BaseException) -> None:
    try:
        part.teardown()
    except Exception as second:  # the first error is the one to be told
        error.add_note(f"teardown() of {type(part).__name__} failed too: {type(second).__name__}: {second}")
    if attributes is not None:
        vars(part).clear()
        vars(part).update(attributes)
