"""What setup refuses, and warns about, before it does anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from poplin.errors import AlreadySetUpError, ArgumentTypeError, ArgumentValueError, PossibleUserWarning
from poplin.rank_zero import rank_zero_warn
from poplin.wrappers.compile import without_compile
from poplin.wrappers.module import FabricModule
from poplin.wrappers.optimizer import FabricOptimizer
from poplin.wrappers.scheduler import FabricScheduler


def check_module(module: Any) -> None:
    """Refuse what is no module, or is set up already."""
    inner = without_compile(module)
    if isinstance(inner, FabricModule):
        raise AlreadySetUpError(
            f"This {type(inner).__name__} has been set up already. Use it as it is; to set it up anew, pass your own "
            "object, which is model.module."
        )
    if not isinstance(inner, nn.Module):
        raise ArgumentTypeError(
            f"setup() takes a torch.nn.Module first, and got a {type(module).__name__}."
            + (" The module comes first: fabric.setup(model, optimizer)." if isinstance(module, Optimizer) else "")
        )


def check_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer, or is set up already."""
    if isinstance(optimizer, FabricOptimizer):
        raise AlreadySetUpError(
            f"This {type(optimizer).__name__} has been set up already. Use it as it is; to set it up anew, pass your "
            "own object, which is optimizer.optimizer."
        )
    if isinstance(optimizer, Optimizer):
        return
    hint = ""
    if isinstance(optimizer, (list, tuple)):
        hint = " Pass several one by one: fabric.setup(model, *optimizers)."
    elif hasattr(optimizer, "get_last_lr"):
        hint = " Pass a scheduler by keyword: fabric.setup(model, optimizer, scheduler=scheduler)."
    elif isinstance(optimizer, nn.Module):
        hint = " Set up one module at a time."
    raise ArgumentTypeError(f"Expected a torch.optim.Optimizer, and got a {type(optimizer).__name__}.{hint}")


def check_distinct(optimizers: Sequence[Optimizer]) -> None:
    """Refuse an optimizer that is given twice."""
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise ArgumentValueError("The same optimizer was given twice: pass each one once.")


def check_scheduler(scheduler: Any) -> None:
    """Refuse what is no scheduler, or is set up already; None is fine."""
    if isinstance(scheduler, FabricScheduler):
        raise AlreadySetUpError(f"This {type(scheduler).__name__} has been set up already. Use it as it is.")
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise ArgumentTypeError(
            f"setup(scheduler=...) takes a learning-rate scheduler, which has a method step(), and got a "
            f"{type(scheduler).__name__}."
        )


def warn_if_scattered(module: nn.Module) -> None:
    """Warn about parameters on several devices, which are about to be moved to one."""
    devices: dict[torch.device, int] = {}
    examples: dict[torch.device, str] = {}
    for name, parameter in module.named_parameters():
        devices[parameter.device] = devices.get(parameter.device, 0) + 1
        examples.setdefault(parameter.device, name)
    if len(devices) < 2:
        return
    (first, name), (second, other), *_ = examples.items()
    rank_zero_warn(
        f"The module passed to setup() has {sum(devices.values())} parameters on {len(devices)} different devices (for "
        f"example {name!r} on {first} and {other!r} on {second}). Since move_to_device=True, all of them are moved to "
        "one device. If that is not wanted, pass move_to_device=False.",
        category=PossibleUserWarning,
    )
