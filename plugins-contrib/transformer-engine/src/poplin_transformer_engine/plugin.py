"""What this package offers. Light: it imports neither torch nor Transformer Engine before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poplin import hookimpl, lazy


@hookimpl
def poplin_precisions() -> Mapping[str, Callable[..., Any]]:
    """``transformer-engine`` (weights in bfloat16) and ``transformer-engine-float16``."""
    target = "poplin_transformer_engine.precision:TransformerEnginePrecision"
    return {
        "transformer-engine": lazy(target),
        "transformer-engine-float16": lazy(target, weights_dtype="float16"),
    }
