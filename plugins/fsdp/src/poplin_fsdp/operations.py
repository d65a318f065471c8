"""One operation on tensors of the meta device, written down."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

#: Operations that fill a tensor whatever was in it before.
_FILLS = frozenset(
    "uniform_ normal_ fill_ zero_ bernoulli_ exponential_ random_ cauchy_ log_normal_ geometric_ copy_".split()
)
_EMPTY = ("aten::empty", "aten::new_empty")


@dataclass(frozen=True)
class View:
    """A tensor on the meta device, as it was: a window on a storage."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def nbytes(self) -> int:
        """Bytes of its values."""
        count = 1
        for extent in self.size:
            count *= extent
        return count * self.dtype.itemsize


@dataclass(frozen=True)
class Given:
    """A real tensor that an operation takes; its values at that time are those that count."""

    tensor: Tensor
    version: int


@dataclass
class Operation:
    """One operation: ``function`` of arguments in which views and given tensors stand for tensors."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    outputs: list[View | None]
    dtype: torch.dtype

    @functools.cached_property
    def views(self) -> list[View]:
        """The views among its arguments."""
        return [leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if isinstance(leaf, View)]

    @property
    def name(self) -> str:
        """What it does, the same in every process."""
        return str(getattr(self.function, "__name__", self.function))

    @property
    def draws(self) -> bool:
        """Whether it takes random numbers, or may."""
        return torch.Tag.nondeterministic_seeded in getattr(self.function, "tags", (torch.Tag.nondeterministic_seeded,))

    @property
    def writes(self) -> bool:
        """Whether it changes an argument."""
        schema = getattr(self.function, "_schema", None)
        return schema is None or bool(schema.is_mutable)

    @property
    def makes_empty(self) -> bool:
        """Whether it makes a tensor without values."""
        schema = getattr(self.function, "_schema", None)
        return schema is not None and schema.name.startswith(_EMPTY)

    def fills(self) -> View | None:
        """The view that it fills, whatever was there before; None if there is none."""
        schema = getattr(self.function, "_schema", None)
        first = self.views[:1]
        if schema is None:  # a function of torch.nn.init
            return first[0] if first else None
        name = schema.name.removeprefix("aten::")
        return first[0] if name in _FILLS and first and self.args and self.args[0] is first[0] else None


def described(leaf: Any) -> str:
    if isinstance(leaf, Given):
        return f"given {tuple(leaf.tensor.shape)} {leaf.tensor.dtype}"
    if isinstance(leaf, torch.Generator):
        return f"generator {leaf.get_state().tolist()}"
    return repr(leaf)
