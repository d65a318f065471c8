"""What this package offers. Light: it imports neither torch nor bitsandbytes before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_precisions() -> Mapping[str, Callable[..., Any]]:
    """``nf4``, ``nf4-dq``, ``fp4``, ``fp4-dq``, ``int8`` and ``int8-training``."""
    names = ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8", "int8-training")
    return {name: lazy("poplin_bitsandbytes.precision:BitsandbytesPrecision", mode=name) for name in names}
