"""The last step of the selection: each chosen object learns of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    with as_before(given_objects(request)):
        selection = resolve(request, Trace())
        own = carried_by(selection.strategy)
        bind_all(selection.parts(), selection)
    remember_bound(selection.strategy, own)
    return selection


def bind_all(parts: tuple[Extension, ...], selection: Selection) -> None:
    """Bind ``parts`` in order. If one raises, those before it and itself are torn down, and are as they were before."""
    reached: list[Extension] = []
    with as_before(parts):
        try:
            for part in parts:
                reached.append(part)
                guarded(f"{label_of(part)}: bind() of {type(part).__name__}", part.bind, selection)
        except BaseException as error:
            for part in reversed(reached):
                _tear_down(part, error)
            raise


@contextmanager
def released_on_error(selection: Selection) -> Iterator[None]:
    """If the block raises, the parts of ``selection`` are torn down, in the reverse order of their binding."""
    try:
        yield
    except BaseException as error:
        for part in reversed(selection.parts()):
            _tear_down(part, error)
        raise


def given_objects(request: Request) -> tuple[Extension, ...]:
    """The user's own objects in a request, and those that a strategy object carries."""
    carried = carried_by(request.strategy)
    values = (request.accelerator, request.strategy, request.precision, *request.plugins, *carried.values())
    return tuple(value for value in values if isinstance(value, Extension))


@contextmanager
def as_before(objects: tuple[Extension, ...], always: bool = False) -> Iterator[None]:
    """If the block raises (or ``always``), the attributes of ``objects`` are afterwards what they were before."""
    before = [(value, dict(vars(value))) for value in objects if hasattr(value, "__dict__")]
    raised = True
    try:
        yield
        raised = False
    finally:
        if raised or always:
            for value, attributes in before:
                vars(value).clear()
                vars(value).update(attributes)


def _tear_down(part: Extension, error: BaseException) -> None:
    try:
        part.teardown()
    except Exception as second:  # the first error is the one to be told
        error.add_note(f"teardown() of {type(part).__name__} failed too: {type(second).__name__}: {second}")
