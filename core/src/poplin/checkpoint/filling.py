"""From matched empty tensors to values: each rank reads the boxes that its own parts of the objects need.

All of it is read, and compared with what was written, before anything is restored: so a damaged folder changes
nothing. It is read into memory of the CPU, and goes to the devices object by object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from poplin.checkpoint.format import map_tensors, walk_tensors
from poplin.checkpoint.items import Item
from poplin.checkpoint.module_item import ModuleItem
from poplin.checkpoint.optimizer_item import OptimizerItem
from poplin.checkpoint.parts import box_of, is_sharded_tensor, like_sharded
from poplin.checkpoint.stored import Request, StoredState
from poplin.checkpoint.tree import Path, children, get_item, has_item, holds_objects

#: An item, and what gives what is saved of it when it is restored.
Target = tuple[Item, Callable[[], Any]]


def wants_parts(items: Iterable[Item]) -> bool:
    """Whether an object is sharded, so that no rank needs the whole of it."""
    for item in items:
        if isinstance(item, ModuleItem):
            tensors: Iterable[Any] = item.module.parameters()
        elif isinstance(item, OptimizerItem):
            tensors = item.names
        else:
            continue
        if any(is_sharded_tensor(tensor) for tensor in tensors):
            return True
    return False


class Filling:
    """The values for a load.

    Args:
        stored: where they are read from.
    """

    def __init__(self, stored: StoredState) -> None:
        self._stored = stored
        #: (number of the target, id of the empty tensor) → (values, the live tensor whose layout they have or None).
        self._values: dict[tuple[int, int], tuple[Tensor, Any]] = {}
        self._requests: list[Request] = []

    def targets(self, matched: Sequence[tuple[Item, Any]]) -> list[Target]:
        """Note what the matched objects need; it is there after :meth:`read`. May be a collective of the strategy."""
        return [(item, self._noted(number, item, saved)) for number, (item, saved) in enumerate(matched)]

    def plain_values(self, value: Any, saved: Any, items: Mapping[Path, Item], path: Path = ()) -> Any:
        """``saved`` with real tensors where ``value``, the user's state, asks for plain values."""
        if path in items or not isinstance(saved, (Mapping, list, tuple)):
            return saved
        changed: dict[Any, Any] = {}
        for key, item in children(value) or ():
            if has_item(saved, key) and (*path, key) not in items:
                old = get_item(saved, key)
                if holds_objects(item):
                    changed[key] = self.plain_values(item, old, items, (*path, key))
                else:
                    changed[key] = self._stored.complete(old)
        if isinstance(saved, Mapping):
            return {**saved, **changed}
        return type(saved)(changed.get(index, item) for index, item in enumerate(saved))

    def read(self) -> None:
        """Read everything that was noted.

        Raises:
            DamagedCheckpointError, CheckpointError: it can't be.
        """
        requests, self._requests = self._requests, []
        self._stored.read(requests)

    def _noted(self, number: int, item: Item, saved: Any) -> Callable[[], Any]:
        saved = item.needed(saved)
        layouts = item.layouts(saved)
        for _, empty in walk_tensors(saved):
            name = self._stored.name_of(empty)
            if name is None or (number, id(empty)) in self._values:
                continue
            live = layouts.get(id(empty))
            box = box_of(live) if live is not None else ((0,) * empty.dim(), tuple(empty.shape))
            offsets, sizes = box if box is not None else ((0,) * empty.dim(), (0,) * empty.dim())
            into = torch.empty(sizes, dtype=empty.dtype)
            self._values[number, id(empty)] = (into, live)
            if into.numel():
                self._requests.append(Request(name, offsets, into))
        return lambda: self._value(number, item, saved)

    def _value(self, number: int, item: Item, saved: Any) -> Any:
        def real(tensor: Tensor) -> Tensor:
            found = self._values.get((number, id(tensor)))
            if found is None:
                return tensor
            values, live = found
            return values if live is None else like_sharded(live, values)

        done: dict[int, Tensor] = {}

        def once(tensor: Tensor) -> Tensor:
            if id(tensor) not in done:
                done[id(tensor)] = real(tensor)
            return done[id(tensor)]

        result = map_tensors(saved, once)
        if not item.restored_last:  # those are restored once more
            for key in [key for key in self._values if key[0] == number]:
                del self._values[key]
        return result
