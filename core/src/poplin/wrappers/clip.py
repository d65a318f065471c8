"""What ``Fabric.clip_gradients`` calls."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.wrappers.compile import without_compile
from poplin.wrappers.module import FabricModule
from poplin.wrappers.optimizer import FabricOptimizer
from poplin.wrappers.setups import Setups


def clip_gradients(
    module: nn.Module | None,
    optimizer: Optimizer,
    *,
    setups: Setups,
    clip_val: float | int | None = None,
    max_norm: float | int | None = None,
    norm_type: float | int | str = 2.0,
    error_if_nonfinite: bool = True,
) -> Tensor | None:
    """See ``Fabric.clip_gradients``.

    Args:
        module: wrapped or raw; None means every parameter of the optimizer.
        optimizer: wrapped or raw.
        setups: of the Fabric; its strategy clips, and a raw module or optimizer is looked up in it.
        clip_val: the greatest absolute value; or
        max_norm: the greatest total norm.
        norm_type: of the norm.
        error_if_nonfinite: whether to raise where the norm is not finite.
    """
    if (clip_val is None) == (max_norm is None):
        got = "both clip_val and max_norm" if clip_val is not None else "neither clip_val nor max_norm"
        raise ArgumentValueError(
            f"clip_gradients() got {got}: give exactly one, clip_val to clip each value, "
            "max_norm to clip the total norm."
        )
    strategy = setups.strategy
    stepped = _optimizer(optimizer, setups)
    clipped = None if module is None else _module(module, setups)
    if clip_val is not None:
        strategy.clip_gradients_value(clipped, stepped, clip_val=clip_val)
        return None
    assert max_norm is not None
    return strategy.clip_gradients_norm(
        clipped, stepped, max_norm=max_norm, norm_type=_norm_type(norm_type), error_if_nonfinite=error_if_nonfinite
    )


def _module(module: Any, setups: Setups) -> Any:
    inner = without_compile(module)
    if isinstance(inner, FabricModule):
        return inner._forward_module
    if not isinstance(inner, nn.Module):
        raise ArgumentTypeError(f"clip_gradients() takes a module first, and got a {type(module).__name__}.")
    wrapped = setups.wrapper_of(inner)
    return inner if wrapped is None else wrapped._forward_module


def _optimizer(optimizer: Any, setups: Setups) -> Any:
    if isinstance(optimizer, FabricOptimizer):
        return optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        raise ArgumentTypeError(f"clip_gradients() takes an optimizer second, and got a {type(optimizer).__name__}.")
    wrapped = setups.optimizer_wrapper_of(optimizer)
    return optimizer if wrapped is None else wrapped.optimizer


def _norm_type(norm_type: Any) -> float:
    try:
        value = float(norm_type)
    except (TypeError, ValueError):
        value = float("nan")
    if not value > 0:
        raise ArgumentValueError(f"norm_type must be a number above 0, or 'inf', and is {norm_type!r}.")
    return value
