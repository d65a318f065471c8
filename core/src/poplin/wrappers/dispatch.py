"""One door for every method of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class MethodDispatch(nn.Module):
    """What a strategy wraps instead of the user's module where its engine has one door, ``forward``.

    Args:
        module: the user's module; it is the only child, called ``module``.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._method: str | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module, or the method of it that :meth:`through` has announced."""
        method, self._method = self._method, None  # what runs inside is a call of its own
        return (self.module if method is None else getattr(self.module, method))(*args, **kwargs)

    def through(self, door: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A callable that runs the method ``name`` by calling ``door``, which must end up in :meth:`forward`.

        Args:
            door: the engine that was made of this module.
            name: a method of the user's module.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            self._method = name
            try:
                return door(*args, **kwargs)
            finally:
                self._method = None  # the engine may have failed before it came here

        return run
