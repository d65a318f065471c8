"""Loggers, and the reader of a checkpoint that already stands somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poplin import registry
from poplin.checkpoint.checkpoint_io import CheckpointIO, StoragePath
from poplin.errors import ArgumentTypeError
from poplin.extension import Extension
from poplin.rank_zero import rank_zero_warn
from poplin.registry import Failure
from poplin.selection.binding import bind_all
from poplin.selection.common import created, first_line, label, label_of
from poplin.selection.request import describe
from poplin.selection.result import Selection
from poplin.selection.trace import Decision, Trace
from poplin.utilities.unwinding import let_through

# --- loggers


def select_loggers(loggers: Any, selection: Selection) -> list[Any]:
    """The loggers of a Fabric: names resolved, each bound to the selection, in the order given.

    Args:
        loggers: None, a registered name, any object with ``log_metrics``, or a list, tuple, set or iterator of these.
        selection: of the Fabric; its trace notes them.

    Raises:
        ArgumentTypeError: something that can't be a logger.
        LookupFailedError: a name that can't be had.
    """
    given = _as_list(loggers)
    chosen = [_logger(value) for value in given]
    bind_all(tuple(value for value, _ in chosen if isinstance(value, Extension)), selection)
    for _, decision in chosen:
        selection.trace.add(decision)
    return [value for value, _ in chosen]


def _as_list(loggers: Any) -> list[Any]:
    if loggers is None:
        return []
    if isinstance(loggers, (list, tuple, set, frozenset)):
        return list(loggers)
    if isinstance(loggers, Iterator) and not _can_log(loggers):
        return list(loggers)
    return [loggers]


def _logger(value: Any) -> tuple[Any, Decision]:
    if isinstance(value, str):
        found = registry.find("loggers", value)
        return found.create(), Decision("logger", found.name, found.provider, f"asked for: loggers={value!r}")
    if isinstance(value, type):
        raise ArgumentTypeError(f"loggers= got {describe(value)}: give an object, {value.__name__}(...).")
    if not _can_log(value):
        raise ArgumentTypeError(
            f"loggers= got {describe(value)}, which has no method log_metrics(metrics=..., step=...). Give a "
            f"registered name ({', '.join(registry.names('loggers'))}), an object with log_metrics, or a list of these."
        )
    return value, Decision("logger", type(value).__name__, label_of(value), f"asked for: loggers={describe(value)}")


def _can_log(value: Any) -> bool:
    return callable(getattr(value, "log_metrics", None))


# --- readers


def reader_for(path: StoragePath, default: CheckpointIO, trace: Trace | None = None) -> CheckpointIO:
    """The checkpoint IO that recognises what stands at ``path``: ``default`` first, then those with the role ``auto``.

    Args:
        path: a local path or an fsspec URL.
        default: the run's own; it is also the answer where nobody recognises the path.
        trace: takes the choice, if it isn't the default.
    """
    if default.recognises(path):
        return default
    broken: list[tuple[str, str]] = []
    for candidate in registry.role_candidates("checkpoint_ios", "auto"):
        if isinstance(candidate, Failure):
            broken.append((label(candidate.provider), first_line(candidate.error)))
            continue
        try:
            recognised = candidate.target_class().recognises(path)
        except BaseException as error:
            let_through(error)
            broken.append((f"{candidate.name} ({label(candidate.provider)})", first_line(error)))
            continue
        if recognised:
            if trace is not None:
                trace.note("reader", candidate.name, f"it recognises {path}", candidate.provider, broken)
            return created(candidate, CheckpointIO)
    for who, why in broken:
        rank_zero_warn(f"The checkpoint IO of {who} is broken ({why}) and was not asked whether it can read {path}.")
    return default
