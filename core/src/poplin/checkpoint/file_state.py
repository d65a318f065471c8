"""A single file opened to be read in parts: mapped into memory, so that a rank touches what it needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from poplin.checkpoint.format import _is_plain, dotted, map_tensors, walk_tensors
from poplin.checkpoint.stored import Request, StoredState


class FileState(StoredState):
    """What ``torch.load(mmap=True)`` gave.

    Args:
        where: for messages.
        mapped: the dictionary in the file; its tensors are mapped.
    """

    def __init__(self, where: str, mapped: dict[str, Any]) -> None:
        self._tensors: dict[str, Tensor] = {}
        empties: dict[int, Tensor] = {}
        names: dict[int, str] = {}
        for path, tensor in walk_tensors(mapped):
            if id(tensor) in empties or not _is_plain(tensor):
                continue
            name = dotted(path)
            name = repr(path) if name in self._tensors else name
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            self._tensors[name], empties[id(tensor)], names[id(empty)] = tensor.detach(), empty, name
        super().__init__(where, map_tensors(mapped, lambda tensor: empties.get(id(tensor), tensor)), names)

    def read(self, requests: Iterable[Request]) -> None:
        """Copy boxes of tensors out of the file."""
        for name, offsets, into in requests:
            box = tuple(slice(first, first + size) for first, size in zip(offsets, into.shape, strict=True))
            into.copy_(self._tensors[name][box])

    def on_demand(self, value: Any) -> Any:
        """Read at once: a file hands out plain dictionaries, however it is read."""
        return self.complete(value)
