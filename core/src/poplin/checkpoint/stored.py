"""A checkpoint that stands in storage and is read in parts: its plain values now, its tensors when and where asked.

In the tree of plain values an empty tensor (on the meta device: shape and dtype, no values) stands for each tensor
that is stored. So what is compared with the objects to be restored is the same for a folder and for a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poplin.checkpoint.format import map_tensors, walk_tensors


class Request(NamedTuple):
    """A box of a stored tensor that is wanted.

    Args:
        name: of the tensor.
        offsets: the box's first index in each dimension.
        into: takes the values: a tensor on the CPU of the box's shape, in C order, and of the stored dtype.
    """

    name: str
    offsets: tuple[int, ...]
    into: Tensor


class StoredState(ABC):
    """A checkpoint in storage.

    Args:
        where: for messages.
        tree: plain values and empty tensors.
        names: the name of each empty tensor, by ``id``; the tree keeps them alive.
    """

    def __init__(self, where: str, tree: dict[str, Any], names: dict[int, str]) -> None:
        self.where, self.tree, self.names = where, tree, names
        self._keep = [tensor for _, tensor in walk_tensors(tree)]

    @abstractmethod
    def read(self, requests: Iterable[Request]) -> None:
        """Read boxes of tensors, each into its place.

        Raises:
            DamagedCheckpointError: what is there is not what was written.
            CheckpointError: it can't be read.
        """

    def name_of(self, value: Any) -> str | None:
        """The name under which ``value``, an empty tensor of the tree, is stored; None for anything else."""
        return self.names.get(id(value)) if isinstance(value, Tensor) else None

    def complete(self, value: Any) -> Any:
        """``value``, a part of the tree, with real tensors."""
        requests: list[Request] = []
        real: dict[int, Tensor] = {}
        for _, empty in walk_tensors(value):
            name = self.name_of(empty)
            if name is not None and id(empty) not in real:
                real[id(empty)] = torch.empty(empty.shape, dtype=empty.dtype)
                requests.append(Request(name, (0,) * empty.dim(), real[id(empty)]))
        if not requests:
            return value
        self.read(requests)
        return map_tensors(value, lambda tensor: real.get(id(tensor), tensor))

    def on_demand(self, value: Any) -> Any:
        """``value``, a part of the tree, to be handed to the user: what holds tensors is read when it is looked at."""
        if self.name_of(value) is not None:
            return self.complete(value)
        if not any(self.name_of(tensor) is not None for _, tensor in walk_tensors(value)):
            return value
        return Unread(self, value) if isinstance(value, Mapping) else self.complete(value)

    def on_demand_in(self, part: Mapping[Any, Any]) -> dict[Any, Any]:
        """A dictionary of what :meth:`on_demand` makes of the entries of ``part``."""
        return {key: self.on_demand(value) for key, value in part.items()}


class Unread(Mapping[Any, Any]):
    """A part of a checkpoint that nobody asked for: tensors in it are read from the folder when they are looked at."""

    def __init__(self, stored: StoredState, part: Mapping[Any, Any]) -> None:
        self._stored, self._part = stored, part

    def __getitem__(self, key: Any) -> Any:
        return self._stored.on_demand(self._part[key])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._part)

    def __len__(self) -> int:
        return len(self._part)

    def __repr__(self) -> str:
        return f"<{len(self)} entries of {self._stored.where}, read when looked at: {', '.join(map(str, self))}>"
