"""Restoring: everything is compared before the first write, and what fails all the same is undone."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poplin.checkpoint.agreement import on_all_ranks, settle
from poplin.checkpoint.check import Findings
from poplin.checkpoint.filling import Filling, Target
from poplin.checkpoint.format import dotted
from poplin.checkpoint.items import Item, Run, Undo
from poplin.checkpoint.objects import StatefulItem
from poplin.checkpoint.optimizer_item import OptimizerItem
from poplin.checkpoint.partly import mark_partly_loaded, unmark
from poplin.checkpoint.stored import StoredState
from poplin.checkpoint.strategy_item import StrategyItem, recorded_state
from poplin.checkpoint.tree import (
    Path,
    can_be_put_back,
    children,
    get_item,
    has_item,
    holds_objects,
    put_back,
    remainder,
)
from poplin.errors import CheckpointError, CollectiveError, PossibleUserWarning

if TYPE_CHECKING:
    from poplin.precision.precision import Precision
    from poplin.strategies.strategy import Strategy


def restore(
    where: str,
    state: Any,
    saved: Mapping[str, Any],
    items: Mapping[Path, Item],
    strategy: Strategy,
    strict: bool,
    precision: Precision | None,
    own: Mapping[str, Any],
    hint: str = "",
    stored: StoredState | None = None,
) -> dict[str, Any]:
    """Restore ``state`` from ``saved``; a collective.

    Args:
        where: the path, for messages.
        state: the user's; or one object, at the path ``()``.
        saved: what was read.
        items: the objects in ``state``.
        strategy: brings the ranks together.
        strict: whether what is missing or unexpected is an error.
        precision: the run's.
        own: what was saved of the precision and of the strategy; empty if they are not to be restored.
        hint: more for the message, if it does not fit.
        stored: where the tensors are read from, if ``saved`` has empty ones.

    Returns:
        What ``state`` did not ask for.

    Raises:
        CheckpointMismatchError: it does not fit; nothing was restored.
        CheckpointError: an object's own code failed; what had been restored by then is as it was before.
    """
    matching = _Matching(items, strict)
    failure: Exception | None = None
    strategy_state: Any = None
    try:
        matching.match(state, saved, ())
        if hint and matching.findings.fatal(strict):
            matching.findings.hints.append(hint)
        with warnings.catch_warnings():
            if not strategy.is_global_zero:
                warnings.simplefilter("ignore", PossibleUserWarning)
            matching.findings.conclude(where, strict)
            matching.tell_changed_world(where)
            strategy_state = recorded_state(strategy, own.get("strategy"), where)
    except Exception as error:  # comparing asks the objects for their state: their own code
        failure = error
    settle(strategy, f"loading {where}", failure)

    matched = matching.targets
    if precision is not None and own.get("precision"):
        matched.append((_PrecisionItem(("precision",), precision, Run(strategy)), own["precision"]))
    if strategy_state is not None:
        matched.append((StrategyItem(strategy), strategy_state))
    if stored is None:
        targets: list[Target] = [(item, functools.partial(_same, saved)) for item, saved in matched]
    else:
        targets, saved = _filled(where, state, saved, items, strategy, stored, matched)
    _Restoration(where, strategy, strict).of(targets)
    if () in items:
        return {}
    put_back(state, saved)
    rest: dict[str, Any] = remainder(state, saved)
    return stored.on_demand_in(rest) if stored is not None else rest


def _same(saved: Any) -> Any:
    return saved


def _filled(
    where: str,
    state: Any,
    saved: Mapping[str, Any],
    items: Mapping[Path, Item],
    strategy: Strategy,
    stored: StoredState,
    matched: Sequence[tuple[Item, Any]],
) -> tuple[list[Target], Mapping[str, Any]]:
    """The values are read, each rank its part; a collective. Nothing has been restored if it raises."""
    filling = Filling(stored)
    targets = on_all_ranks(strategy, f"loading {where}", lambda: filling.targets(matched))

    def read() -> Any:
        filling.read()
        return filling.plain_values(state, saved, items)

    return targets, on_all_ranks(strategy, f"loading {where}", read)


class _PrecisionItem(StatefulItem):
    """The precision, whose state is on no key of the user's."""


class _Matching:
    """Finds for each object in the state what is saved of it."""

    def __init__(self, items: Mapping[Path, Item], strict: bool) -> None:
        self.items, self.strict = items, strict
        self.findings = Findings()
        self.targets: list[tuple[Item, Any]] = []
        self._changed_world: list[str] = []

    def match(self, value: Any, saved: Any, path: Path) -> None:
        """Compare ``value``, at ``path``, with ``saved``."""
        if path in self.items:
            self._match_item(self.items[path], saved)
            return
        items = children(value) or []
        names = [dotted((*path, key)) for key in saved] if isinstance(saved, Mapping) else []
        for key, item in items:
            inner = (*path, key)
            if not has_item(saved, key):
                self.findings.miss(dotted(inner), names)
            elif inner in self.items or holds_objects(item):
                self.match(item, get_item(saved, key), inner)
            elif not isinstance(value, tuple) and not can_be_put_back(value):
                self.findings.others.append(f"{dotted(inner)}: a {type(value).__name__} can't change")
        if isinstance(value, (list, tuple)) and isinstance(saved, (list, tuple)):
            self.findings.unexpected += [dotted((*path, index)) for index in range(len(items), len(saved))]

    def _match_item(self, item: Item, saved: Any) -> None:
        saved = item.adapted(saved)
        item.compare(saved, self.strict, self.findings)
        if isinstance(item, StatefulItem) and (change := item.changed_world(saved)):
            self._changed_world.append(change)
        self.targets.append((item, saved))

    def tell_changed_world(self, where: str) -> None:
        """Warn about states of ranks that are more, or fewer, now."""
        if self._changed_world:
            warnings.warn(
                f"Loading {where} with another number of processes: {'; '.join(self._changed_world)}.",
                PossibleUserWarning,
                stacklevel=2,
            )


class _Restoration:
    """Writes into the objects, in an order in which what may fail comes first, where it can be undone."""

    def __init__(self, where: str, strategy: Strategy, strict: bool) -> None:
        self.where, self.strategy, self.strict = where, strategy, strict
        self._undos: list[tuple[Item, Undo]] = []
        self._items: list[Item] = []

    def of(self, targets: Sequence[Target]) -> None:
        """Restore all; a collective."""
        self._items = [item for item, _ in targets]
        late = [target for target in targets if _after_modules(target[0])]
        early = [target for target in targets if target[0].may_fail and not _after_modules(target[0])]
        kept = [target for target in early if isinstance(target[0], StrategyItem)]
        early = [target for target in early if target not in kept]
        # what needs no collective comes first, so that a rank that fails there leaves no other waiting in one
        self._undoable([target for target in early if not target[0].collective])
        self._undoable([target for target in early if target[0].collective])
        self._strategys(kept)
        self._final([target for target in targets if not target[0].may_fail])
        self._final(late)
        self._final([target for target in targets if target[0].restored_last])
        unmark(self._items)

    def _undoable(self, targets: Sequence[Target]) -> None:
        def step() -> None:
            self._undos += self._snapshots(targets)
            self._restore_all(targets)

        self._agreed(step)

    def _strategys(self, targets: Sequence[Target]) -> None:
        """What the strategy keeps, in steps of their own: each of its methods is called on every rank or on none."""
        undos: list[tuple[Item, Undo]] = []
        if targets:
            self._agreed(lambda: undos.extend(self._snapshots(targets)))
            self._undos += undos
            self._agreed(lambda: self._restore_all(targets))

    def _snapshots(self, targets: Sequence[Target]) -> list[tuple[Item, Undo]]:
        return [(item, _named(item, "state_dict", item.snapshot)) for item, _ in targets]

    def _restore_all(self, targets: Sequence[Target], whole: bool = True) -> None:
        for item, saved in targets:
            _named(item, "load_state_dict", functools.partial(_restore, item, saved, self.strict), whole)

    def _agreed(self, step: Callable[[], None]) -> None:
        try:
            settle(self.strategy, f"loading {self.where}", _attempt(step))
        except Exception as error:
            self._undo_all(error)
            raise

    def _undo_all(self, error: Exception) -> None:
        for item, undo in reversed(self._undos):
            if isinstance(error, CollectiveError) and isinstance(item, StrategyItem):
                error.add_note("What the strategy keeps was not put back: that may need ranks that are in step.")
                continue
            try:
                undo()
            except Exception as second:  # the object's own code again
                error.add_note(f"{item.name} could not be put back to what it was before: {second!r}")

    def _final(self, targets: Sequence[Target]) -> None:
        """What was compared, and runs no code of the user's."""
        try:
            settle(self.strategy, f"loading {self.where}", _attempt(lambda: self._restore_all(targets, whole=False)))
        except BaseException:
            mark_partly_loaded(self._items, self.where)
            raise


def _restore(item: Item, saved: Callable[[], Any], strict: bool) -> None:
    item.restore(saved(), strict)


def _after_modules(item: Item) -> bool:
    return isinstance(item, OptimizerItem) and item.after_modules


def _attempt(step: Callable[[], None]) -> Exception | None:
    try:
        step()
    except CollectiveError:
        raise  # the ranks are out of step already
    except Exception as error:
        return error
    return None


def _named(item: Item, method: str, step: Callable[[], Any], whole: bool = True) -> Any:
    """Run ``step``; what it raises is told with the object's name."""
    try:
        return step()
    except CollectiveError:
        raise
    except Exception as error:
        name = item.name or type(item.value).__name__
        end = "Nothing was restored: everything is as it was before." if whole else "It may be restored in part."
        raise CheckpointError(
            f"{name} could not be restored: {method}() of {type(item.value).__name__} raised "
            f"{type(error).__name__}: {error}. {end}"
        ) from error
