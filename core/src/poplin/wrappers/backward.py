"""What ``Fabric.backward`` calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from poplin.errors import ArgumentTypeError, ArgumentValueError, NotSetUpError, UsageError
from poplin.wrappers.parts import has_part

if TYPE_CHECKING:
    from poplin.wrappers.setups import Setups

#: backward(tensor, *args, model=None, **kwargs)
Backward = Callable[..., None]


def backward_function(setups: Setups) -> Backward:
    """The function that runs backward passes: the tensor's own where neither strategy nor precision has a part in it.

    Args:
        setups: what one Fabric has set up.
    """
    strategy, precision, guard = setups.strategy, setups.precision, setups.guard
    on_start = setups.callbacks.live("on_backward_start")
    on_end = setups.callbacks.live("on_backward_end")

    def plainly(tensor: Tensor, *args: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        if on_start:
            for fire in on_start:
                fire(loss=tensor)
        try:
            tensor.backward(*args, **kwargs)
        except AttributeError:
            _check_tensor(tensor)
            raise
        if on_end:
            for fire in on_end:
                fire(loss=tensor)

    def by_strategy(tensor: Tensor, *args: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        _check_tensor(tensor)
        engine = _engine(setups, model)
        for fire in on_start:
            fire(loss=tensor)
        if guard is None:
            strategy.backward(tensor, engine, *args, **kwargs)
        else:
            guard.inside.append(None)
            try:
                strategy.backward(tensor, engine, *args, **kwargs)
            finally:
                guard.inside.pop()
        for fire in on_end:
            fire(loss=tensor)

    if strategy.owns_backward or precision.scales_loss:
        return by_strategy
    return by_strategy if has_part(strategy, precision, "backward", "pre_backward", "post_backward") else plainly


def _check_tensor(tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        hint = " Pass its loss: fabric.backward(outputs['loss'])." if isinstance(tensor, dict) else ""
        raise ArgumentTypeError(f"backward() takes the loss, a tensor, and got a {type(tensor).__name__}.{hint}")


def _engine(setups: Setups, model: nn.Module | None) -> Any:
    """What the strategy made of ``model``; of the only module there is, where it must have one."""
    if model is not None:
        wrapped = setups.wrapper_of(model)
        if wrapped is None:
            raise NotSetUpError(
                f"backward(model=...) takes what fabric.setup() returned, and this {type(model).__name__} has not been "
                "set up by this Fabric."
            )
        return wrapped._forward_module
    if not setups.strategy.owns_backward:
        return None
    engines = setups.engines()
    name = type(setups.strategy).__name__
    if not engines:
        raise UsageError(
            f"{name} runs the backward pass by the engine that it makes of a module, and no module is set up yet: "
            "model, optimizer = fabric.setup(model, optimizer)."
        )
    if len(engines) > 1:
        raise ArgumentValueError(
            f"{len(engines)} modules are set up, and {name} runs the backward pass by the engine of one of them: say "
            "which, fabric.backward(loss, model=model)."
        )
    return engines[0]._forward_module
