"""What runs a sharded module: the one door through which its parameters are gathered."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from poplin.wrappers import MethodDispatch


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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        return self._run(self._what, super().__call__, *args, **kwargs)

    def method(self, name: str) -> Callable[..., Any]:
        """A callable that runs the user's method ``name`` as a forward."""
        return self.through(self, name)


class GradientSync:
    """While it lasts, backward passes leave gradients whole and this rank's own."""

    __slots__ = ("_before", "_parts", "_whole")

    def __init__(self, parts: list[FSDPModule], whole: Any) -> None:
        self._parts = parts
        self._whole = whole

    def __enter__(self) -> None:
        self._before = self._whole.enabled
        self._set(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._set(self._before)

    def _set(self, enabled: bool) -> None:
        for part in self._parts:
            part.set_requires_gradient_sync(enabled, recurse=False)
        self._whole.enabled = enabled


def sharded_parts(module: nn.Module) -> list[FSDPModule]:
    """The modules below ``module``, itself included, that gather parameters."""
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def reshard(module: nn.Module) -> None:
    """Let every part of ``module`` hold its sharded parameters again, in the place of those gathered for a forward."""
    for part in sharded_parts(module):
        part.reshard()
