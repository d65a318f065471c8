"""torch's DistributedDataParallel around the user's module, with a door for methods other than ``forward``."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from poplin.wrappers import MethodDispatch

#: A module may list parameters and buffers that are to be left alone; torch reads this attribute.
_IGNORED = "_ddp_params_and_buffers_to_ignore"


class Replica(DistributedDataParallel):
    """One rank's copy of a module, whose gradients are averaged over ranks.

    Args:
        module: the user's module.
        device: where its inputs are moved, or None to leave them where they are.
        run: ``run(what, function, *args, **kwargs)`` runs what talks to the other ranks.
        options: torch's own arguments.
    """

    def __init__(self, module: nn.Module, device: torch.device | None, run: Callable[..., Any], **options: Any) -> None:
        dispatch = MethodDispatch(module)
        ignored = getattr(module, _IGNORED, None)
        if ignored is not None:  # the names get longer by the dispatch in between
            setattr(dispatch, _IGNORED, [f"module.{name}" for name in ignored])
        super().__init__(dispatch, device_ids=None if device is None else [device.index], **options)
        self._run = run
        self._what = f"forward of {type(module).__name__}"

    @property
    def original(self) -> nn.Module:
        """The user's module."""
        module: nn.Module = self.module.module
        return module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module, or the marked method that the dispatch has been told of.

        What is no step of a synchronised backward pass may run more often on one rank than on another, and isn't
        counted. (Buffers are sent only before the first of a row of evaluation forwards: that is how torch does it.)
        Neither is what torch.compile traces.
        """
        counted = self.require_backward_grad_sync and torch.is_grad_enabled()
        if torch.compiler.is_compiling() or not counted:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        return self._run(self._what, super().forward, *inputs, **kwargs)

    def release(self) -> None:
        """Let the process group go: from now on the module runs by itself, and its gradients stay this rank's own.

        What torch keeps of the group in C++ must not be what ends it. That would happen under Python's lock, for which
        the group's threads may be waiting; and while it lives, the other ranks wait for this one.
        """
        for name in ("logger", "reducer", "process_group"):
            self.__dict__.pop(name, None)
        self.__class__ = _Released

    def method(self, name: str) -> Callable[..., Any]:
        """The user's method ``name``, run as a forward of this replica."""
        through: Callable[..., Any] = self.module.through(self, name)
        return through


class _Released(Replica):
    """A replica whose strategy was torn down."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    def release(self) -> None:
        """It was."""


class NoSync:
    """Gradients stay this rank's own. What ``no_sync()`` of torch's does, without the cost of a generator."""

    __slots__ = ("_before", "_replica")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def __enter__(self) -> None:
        self._before = self._replica.require_backward_grad_sync
        self._replica.require_backward_grad_sync = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._replica.require_backward_grad_sync = self._before
