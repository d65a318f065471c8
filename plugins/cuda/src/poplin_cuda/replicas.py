"""torch's DataParallel around the user's module, with a door for methods other than ``forward``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from poplin.wrappers import MethodDispatch

Context = Callable[[], AbstractContextManager[Any]]


class PreciseDispatch(MethodDispatch):
    """Runs each replica's forward in the context of the precision.

    torch runs replicas in threads of their own. There it turns autocast on if it is on in the caller's, but with the
    device type's default dtype: bfloat16 would become float16, and nothing would scale the loss.

    Args:
        module: the user's module.
        context: makes the context.
    """

    def __init__(self, module: nn.Module, context: Context) -> None:
        super().__init__(module)
        self._context = context

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._context():
            return super().forward(*args, **kwargs)


class Replicas(DataParallel[MethodDispatch]):
    """One module on several devices of this process; each forward splits its inputs along the first dimension.

    Args:
        module: the user's module, on the first of the devices.
        devices: one for each replica. Outputs are gathered on the first.
        context: makes the context that each replica's forward runs in; None where none is needed.
    """

    def __init__(self, module: nn.Module, devices: list[torch.device], context: Context | None) -> None:
        dispatch = MethodDispatch(module) if context is None else PreciseDispatch(module, context)
        super().__init__(dispatch, device_ids=devices)

    @property
    def original(self) -> nn.Module:
        """The user's module."""
        return self.module.module

    def method(self, name: str) -> Callable[..., Any]:
        """The user's method ``name``, run as a forward of these replicas."""
        return self.module.through(self, name)
