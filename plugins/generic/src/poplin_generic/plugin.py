"""What this package offers. Light: it imports neither torch nor an accelerator before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy

_CLASSES = {
    "xpu": "XPUAccelerator",
    "npu": "NPUAccelerator",
    "hpu": "HPUAccelerator",
    "mtia": "MTIAAccelerator",
    "torch": "TorchAccelerator",
}


@hookimpl
def poplin_accelerators() -> Mapping[str, Callable[..., Any]]:
    """An accelerator for each device type that torch knows by name, and ``torch`` for whichever it reports."""
    return {name: lazy(f"poplin_generic.accelerator:{cls}") for name, cls in _CLASSES.items()}
