"""All ranks or none: a step that fails on one rank fails on every rank, and each says whose fault it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from poplin import errors
from poplin.errors import CheckpointError, CollectiveError, PoplinError

if TYPE_CHECKING:
    from poplin.strategies.strategy import Strategy

T = TypeVar("T")


def on_all_ranks(strategy: Strategy, doing: str, step: Callable[[], T]) -> T:
    """Run ``step`` on every rank and wait for the others; a collective.

    Args:
        strategy: brings the ranks together.
        doing: for messages: ``saving /data/a.ckpt``.
        step: what to do here.

    Raises:
        Exception: what ``step`` raised here.
        CheckpointError: it raised on another rank, which is named (the class is that of the other's error, if it is
            one of ours).
    """
    if strategy.world_size == 1:
        return step()
    failure: Exception | None = None
    result: Any = None
    try:
        result = step()
    except CollectiveError:
        raise  # the ranks are out of step already: another collective would only wait for its timeout
    except Exception as error:  # whatever it is, the others must hear of it
        failure = error
    settle(strategy, doing, failure)
    return result  # type: ignore[no-any-return]


def settle(strategy: Strategy, doing: str, failure: Exception | None) -> None:
    """Raise on every rank if ``failure`` is set on one; a collective."""
    if strategy.world_size > 1 and not strategy.reduce_boolean_decision(failure is None, all=True):
        reports = gather_objects(strategy, None if failure is None else (type(failure).__name__, str(failure)))
        if failure is None:
            raise theirs(doing, reports)
    if failure is not None:
        raise failure


def gather_objects(strategy: Strategy, value: Any) -> list[Any]:
    """``value`` of every rank, in the order of ranks; a collective. For small objects."""
    return [
        strategy.broadcast(value if strategy.global_rank == rank else None, src=rank)
        for rank in range(strategy.world_size)
    ]


def theirs(doing: str, reports: Sequence[tuple[str, str] | None]) -> PoplinError:
    """The error of a rank where others failed.

    Args:
        doing: for messages.
        reports: by rank: name of the error's class and its text, None where nothing failed.
    """
    failed = [(rank, *report) for rank, report in enumerate(reports) if report is not None]
    rank, kind, text = failed[0]
    cls = getattr(errors, kind, None)
    also = f" (rank(s) {', '.join(str(other) for other, _, _ in failed[1:])} failed as well)" if failed[1:] else ""
    message = f"Rank {rank} failed in {doing}, so that every rank stops here{also}: "
    if isinstance(cls, type) and issubclass(cls, PoplinError):
        return cls(message + text)
    return CheckpointError(f"{message}{kind}: {text}")
