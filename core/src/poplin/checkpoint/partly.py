"""Objects that a load has restored in part: they refuse to be used until a load succeeds.

The marks are torch's own hooks, registered on the object when it happens; an object without a mark costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from poplin.checkpoint.items import Item
from poplin.checkpoint.module_item import ModuleItem
from poplin.checkpoint.optimizer_item import OptimizerItem
from poplin.errors import PartlyLoadedError

#: Object → (what is wrong with it, what takes the mark away).
_MARKS: Any = WeakIdKeyDictionary()


def mark_partly_loaded(items: Iterable[Item], where: str) -> None:
    """Make the objects refuse use."""
    for item in items:
        for target in _targets(item):
            if target in _MARKS:
                continue
            what = item.name or type(target).__name__
            text = (
                f"{what} was restored only in part: loading {where} failed in the middle. Load a checkpoint into it "
                "successfully, or make it anew; what it holds now is a mixture."
            )
            _MARKS[target] = (text, _hooked(target, text))


def unmark(items: Iterable[Item]) -> None:
    """The objects were restored whole."""
    for item in items:
        for target in _targets(item):
            mark = _MARKS.pop(target, None)
            if mark is not None:
                mark[1]()


def refuse_partly_loaded(items: Iterable[Item]) -> None:
    """Refuse to save what is marked.

    Raises:
        PartlyLoadedError: an object is.
    """
    for item in items:
        for target in _targets(item):
            if target in _MARKS:
                raise PartlyLoadedError(f"{_MARKS[target][0]} Nothing was written.")


def _targets(item: Item) -> list[Any]:
    """The objects behind an item that can be marked: what is the user's, not what is around it."""
    if isinstance(item, ModuleItem):
        return [item.module]
    if isinstance(item, OptimizerItem):
        return [item.optimizer]
    return []


def _hooked(target: Any, text: str) -> Callable[[], None]:
    def refuse(*_: Any) -> None:
        raise PartlyLoadedError(text)

    if isinstance(target, nn.Module):
        return target.register_forward_pre_hook(refuse, prepend=True).remove
    assert isinstance(target, Optimizer)
    return target.register_step_pre_hook(refuse).remove
