"""A checkpoint that is in memory already, in the form of one that is read in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from poplin.checkpoint.format import map_tensors
from poplin.checkpoint.stored import Request, StoredState


class HeldState(StoredState):
    """What a checkpoint IO that reads whole checkpoints has read.

    Args:
        where: for messages.
        content: plain values and tensors.
    """

    def __init__(self, where: str, content: Mapping[str, Any]) -> None:
        self._values: dict[str, Tensor] = {}
        names: dict[int, str] = {}
        empties: dict[int, Tensor] = {}

        def empty(tensor: Tensor) -> Tensor:
            if id(tensor) not in empties:
                empties[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
                names[id(empties[id(tensor)])] = str(len(self._values))
                self._values[str(len(self._values))] = tensor
            return empties[id(tensor)]

        super().__init__(where, map_tensors(dict(content), empty), names)

    def read(self, requests: Iterable[Request]) -> None:
        for request in requests:
            box = self._values[request.name]
            for dimension, (offset, size) in enumerate(zip(request.offsets, request.into.shape, strict=True)):
                box = box.narrow(dimension, offset, size)
            request.into.copy_(box)
