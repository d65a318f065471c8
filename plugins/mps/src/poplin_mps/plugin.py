"""What this package offers. Light: it imports neither torch nor the accelerator before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_accelerators() -> Mapping[str, Callable[..., Any]]:
    """``mps``, for the roles ``auto`` and ``gpu`` too."""
    return {"mps": lazy("poplin_mps.accelerator:MPSAccelerator")}
