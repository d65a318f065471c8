"""Small types: a dictionary with attributes, and names for annotations."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch.distributed import ReduceOp
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

__all__ = ["AttributeDict", "LRScheduler", "Optimizable", "ReduceLROnPlateau", "ReduceOp", "Stateful", "Steppable"]

_PATH: TypeAlias = str | os.PathLike[str]
_DEVICE: TypeAlias = torch.device | str | int


class AttributeDict(dict[Any, Any]):
    """A dictionary whose items are attributes too: state and hyperparameters that can be saved as they are.

    ::

        state = AttributeDict(model=model, step=0)
        state.step += 1
        fabric.save("last.ckpt", state)
    """

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute or key {key!r}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delattr__(self, key: str) -> None:
        try:
            del self[key]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute or key {key!r}") from None

    def copy(self) -> AttributeDict:
        """A shallow copy."""
        return type(self)(self)

    def __repr__(self) -> str:
        if not self:
            return f"{type(self).__name__}()"
        widest = max(len(str(key)) for key in self)
        return "\n".join(f'"{key}":{"":{widest - len(str(key)) + 1}}{self[key]}' for key in sorted(self, key=str))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(key for key in self if isinstance(key, str))})


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""


@runtime_checkable
class Steppable(Protocol):
    """Anything with a ``step``, such as an optimizer or a scheduler."""

    def step(self, closure: Any = None) -> Any:
        """Take a step."""


@runtime_checkable
class Optimizable(Steppable, Protocol):
    """What is used as an optimizer."""

    param_groups: list[dict[Any, Any]]
    defaults: dict[Any, Any]
    state: Any

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
