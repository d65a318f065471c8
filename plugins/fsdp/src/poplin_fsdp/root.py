"""What runs a sharded module: the one door through which its parameters are gathered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from poplin.wrappers import MethodDispatch
from poplin_fsdp.averaging import Averaging


class ShardedRoot(MethodDispatch):
    """The root of sharding around the user's module, which so keeps its own class, and any method of which can run.

    ``fully_shard`` is applied to this module: its hooks gather what no submodule gathers by itself.

    Args:
        module: the user's module.
        run: ``run(what, function, *args, **kwargs)`` runs what talks to the other ranks.
    """

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__(module)
        self._run = run
        self._what = f"forward of {type(module).__name__}"
        #: Averages the gradients of what is not sharded; given when all is sharded.
        self.averaging: Averaging | None = None
        self._others: list[ShardedRoot] = []
        self._parts: list[FSDPModule] | None = None

    def contains(self, others: Iterable[ShardedRoot]) -> None:
        """Learn of the roots of modules that were set up before and stand somewhere in this one."""
        inside = {id(part.__dict__) for part in self.modules()}  # a wrapper shares the user's dictionary
        self._others = [other for other in others if other is not self and id(other.module.__dict__) in inside]

    def modules_set_up_before(self) -> set[int]:
        """Everything in the modules of these other roots, by the ``id`` of its dictionary."""
        return {id(part.__dict__) for other in self._others for part in other.module.modules()}

    @property
    def parts(self) -> list[FSDPModule]:
        """What gathers parameters, in this module and in those that were set up before."""
        if self._parts is None:
            own = [part for part in self.modules() if isinstance(part, FSDPModule)]
            self._parts = [*own, *(part for other in self._others for part in other.parts)]
        return self._parts

    @property
    def averagings(self) -> list[Averaging]:
        """The same for what averages gradients."""
        own = [] if self.averaging is None else [self.averaging]
        return [*own, *(one for other in self._others for one in other.averagings)]

    def reshard(self) -> None:
        """Put sharded parameters into the places of those that are gathered for a forward."""
        for part in self.parts:
            part.reshard()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        try:
            return self._run(self._what, super().__call__, *args, **kwargs)
        except BaseException:
            self.recover()
            raise

    def recover(self) -> None:
        """Forget a forward, or a backward, that was not finished: the next one starts anew. Its gradients are lost."""
        for part in self.parts:
            reset = getattr(part, "reset_iter_state", None)  # since torch 2.13
            if reset is not None:
                with contextlib.suppress(RuntimeError, AttributeError):  # only the outermost can, once it has run
                    reset()

    def method(self, name: str) -> Callable[..., Any]:
        """A callable that runs the user's method ``name`` as a forward."""
        return self.through(self, name)


class NoSync:
    """While it lasts, backward passes leave gradients whole and this rank's own."""

    __slots__ = ("_before", "_root")

    def __init__(self, root: ShardedRoot) -> None:
        self._root = root
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before = [one.enabled for one in self._root.averagings]
        self._set([False] * len(self._before))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._set(self._before)

    def _set(self, enabled: list[bool]) -> None:
        for one, value in zip(self._root.averagings, enabled, strict=True):
            one.enabled = value
        for part in self._root.parts:
            part.set_requires_gradient_sync(all(enabled), recurse=False)
