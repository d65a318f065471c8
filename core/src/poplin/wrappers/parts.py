"""Whether a strategy or a precision has a part in something, looked at once, when things are set up."""

from __future__ import annotations

from typing import Any

from poplin.precision.precision import Precision
from poplin.strategies.strategy import Strategy


def is_overridden(extension: Any, base: type, *names: str) -> bool:
    """Whether the object, or its class, has another one of these methods than ``base`` has."""
    own = getattr(extension, "__dict__", {})
    return any(name in own or getattr(type(extension), name) is not getattr(base, name) for name in names)


def has_part(strategy: Strategy, precision: Precision, *names: str) -> bool:
    """Whether strategy or precision has a part in one of these methods, which both have."""
    return any(
        is_overridden(extension, base, name)
        for name in names
        for extension, base in ((strategy, Strategy), (precision, Precision))
        if hasattr(base, name)
    )
