"""What every part of the strategy knows: its engines, and the user's modules inside them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from poplin.strategies import ParallelStrategy
from poplin_deepspeed import setup


class Engines(ParallelStrategy):
    """The engines of a strategy, held weakly: they belong to the set-up modules."""

    #: DeepSpeed's config, merged; batch sizes and precision are added when an engine is made.
    config: dict[str, Any]
    _engines: list[weakref.ref[Any]]

    def _live_engines(self) -> list[Any]:
        self._engines[:] = [reference for reference in self._engines if reference() is not None]
        return [engine for reference in self._engines if (engine := reference()) is not None]

    def _handles(self) -> list[setup.Handle]:
        return [handle for engine in self._live_engines() if (handle := setup.handle_of(engine)) is not None]

    def original_module(self, wrapped: nn.Module) -> nn.Module:
        if setup.handle_of(wrapped) is None:
            return wrapped
        engine: Any = wrapped
        original: nn.Module = engine.module.module
        return original

    def forward_method(self, wrapped: nn.Module, name: str) -> Callable[..., Any]:
        if setup.handle_of(wrapped) is None:
            return super().forward_method(wrapped, name)
        through: Callable[..., Any] = wrapped.module.through(wrapped, name)  # type: ignore[union-attr, operator]
        return through
