"""Whether something is set up, and what it was before."""

from __future__ import annotations

from typing import Any

from poplin.wrappers.compile import without_compile
from poplin.wrappers.sharing import Shared, link_of


def is_wrapped(obj: object) -> bool:
    """Whether ``obj`` is what ``setup``, ``setup_module``, ``setup_optimizers`` or ``setup_dataloaders`` returned.

    A set-up module that was compiled, by you or by setup, counts as well.
    """
    return isinstance(without_compile(obj), Shared) or _is_dataloader(obj)


def unwrap(obj: Any) -> Any:
    """The user's own object inside a wrapper, compiled or not; anything else as it is."""
    inner = without_compile(obj)
    if isinstance(inner, Shared):
        return link_of(inner).original
    if _is_dataloader(obj):
        return obj._dataloader
    return inner


def _is_dataloader(obj: object) -> bool:
    from poplin.wrappers.dataloader import FabricDataLoader

    return isinstance(obj, FabricDataLoader)
