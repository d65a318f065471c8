"""float16's dynamic loss scale travels with the optimizer's state, in which other strategies pass it over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: In the optimizer's state by name.
KEY = "deepspeed_loss_scale"
#: What changes as DeepSpeed's scaler goes on.
_ATTRIBUTES = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def state_of(scaler: Any) -> dict[str, dict[str, float | int]]:
    """What is to be added to the optimizer's state; nothing where the scale does not change."""
    if not getattr(scaler, "dynamic", False):
        return {}
    return {KEY: {name: getattr(scaler, name) for name in _ATTRIBUTES if hasattr(scaler, name)}}


def restore(scaler: Any, state: Mapping[str, Any]) -> None:
    """Put back what :func:`state_of` took; a state without it, or a scale that doesn't change, changes nothing."""
    saved = state.get(KEY)
    if not getattr(scaler, "dynamic", False) or not isinstance(saved, Mapping):
        return
    for name in _ATTRIBUTES:
        if name in saved and hasattr(scaler, name):
            setattr(scaler, name, saved[name])
