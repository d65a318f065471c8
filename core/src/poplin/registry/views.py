"""The registries that users of Lightning know, as views on the real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poplin.errors import LookupFailedError
from poplin.registry.face import find, names, register, unregister
from poplin.registry.kinds import get_kind
from poplin.registry.names import fold

_MISSING = object()


class RegistryView:
    """The names of one kind.

    Args:
        kind: which.
    """

    def __init__(self, kind: str) -> None:
        self._kind = get_kind(kind)

    def register(
        self,
        name: str,
        target: Any = None,
        description: str | None = None,
        override: bool = False,
        **init_params: Any,
    ) -> Any:
        """Register a class (or a function) under ``name``; without one, this is a decorator.

        Args:
            name: the name to look it up by.
            target: the class.
            description: one line for listings.
            override: replace what the script registered under this name.
            **init_params: what the class is constructed with.

        Raises:
            NameConflictError: a built-in has this name.
            ArgumentValueError: the name can't be registered, or stands for something else already.
        """
        if isinstance(target, str) and description is None and ":" not in target:
            # as a decorator, Lightning's second argument is the description
            target, description = None, target
        return register(self._kind.name, name, target, description=description or "", override=override, **init_params)

    def get(self, name: str, default: Any = _MISSING) -> Any:
        """A new object of what ``name`` stands for.

        Args:
            name: the name.
            default: returned where there is no such name.

        Raises:
            LookupFailedError: it can't be had (a KeyError, too).
        """
        try:
            found = find(self._kind.name, name)
        except LookupFailedError:
            if default is not _MISSING:
                return default
            raise
        return found.create()

    def remove(self, name: str) -> None:
        """Take out what this process registered under ``name``.

        Raises:
            ArgumentValueError: it was not registered by this process.
        """
        unregister(self._kind.name, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and fold(name) in {fold(one) for one in self}

    def __iter__(self) -> Iterator[str]:
        return iter(names(self._kind.name))

    def __len__(self) -> int:
        return len(names(self._kind.name))

    def __repr__(self) -> str:
        return f"Registered {self._kind.name}: {', '.join(self)}"


class StrategyRegistryView(RegistryView):
    """The strategies."""

    def available_strategies(self) -> list[str]:
        """Their names, sorted."""
        return list(self)


class AcceleratorRegistryView(RegistryView):
    """The accelerators."""

    def available_accelerators(self) -> list[str]:
        """Their names, sorted."""
        return list(self)


STRATEGY_REGISTRY = StrategyRegistryView("strategies")
ACCELERATOR_REGISTRY = AcceleratorRegistryView("accelerators")
