"""An engine is made of a module and its optimizer."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from poplin.errors import PoplinError, UsageError
from poplin.wrappers import MethodDispatch
from poplin_deepspeed.engine import EngineState
from poplin_deepspeed.errors import EngineLimitError, EngineSetupError
from poplin_deepspeed.names import Names
from poplin_deepspeed.settings import ZERO, get
from poplin_deepspeed.state import put_master

_ATTRIBUTE = "_poplin"


class Handle:
    """What hangs on an engine.

    Args:
        state: for what is asked of the engine.
        names: of its module.
        optimizer: the user's, or None.
    """

    def __init__(self, state: EngineState, names: Names, optimizer: Optimizer | None) -> None:
        self.state = state
        self.names = names
        self.optimizer = optimizer


def handle_of(engine: Any) -> Handle | None:
    """The handle of an engine that this package made; None for anything else."""
    handle = getattr(engine, "__dict__", {}).get(_ATTRIBUTE)
    return handle if isinstance(handle, Handle) else None


def check_optimizer(module: nn.Module, optimizer: Optimizer, engines: list[Handle]) -> None:
    """Refuse what no engine can be made of.

    Raises:
        UsageError: the optimizer holds parameters of another module, or of another engine.
        EngineLimitError: its steps evaluate the loss several times.
    """
    if isinstance(optimizer, LBFGS):
        raise EngineLimitError(
            "LBFGS evaluates the loss several times within one step, and DeepSpeed's engine evaluates nothing. Use "
            "another optimizer, or another strategy."
        )
    own = set(module.parameters())
    foreign = sum(parameter not in own for group in optimizer.param_groups for parameter in group["params"])
    if foreign:
        raise UsageError(
            f"{foreign} parameter(s) of {type(optimizer).__name__} are none of {type(module).__name__}'s: an engine is "
            "made of one module and of the optimizer of its parameters. Put the modules that one optimizer steps into "
            "one module, or make an optimizer for each."
        )
    for other in engines:
        shared = own & set(other.names.first)
        if shared:
            raise UsageError(
                f"{len(shared)} parameter(s) of {type(module).__name__} belong to another module that has been set up, "
                "and two engines can't step the same parameter. Put both modules into one."
            )


def make_engine(
    deepspeed: Any,
    module: nn.Module,
    optimizer: Optimizer | None,
    config: Mapping[str, Any],
    user_state: Mapping[str, Any],
    *,
    device: torch.device,
    local_rank: int,
    exact_weights: bool,
) -> Any:
    """DeepSpeed's engine, with a handle on it.

    Args:
        deepspeed: the module.
        module: the user's.
        optimizer: the user's; None for a module that is only to be run.
        config: complete.
        user_state: the module's state dict under the user's names.
        device: of this process.
        local_rank: of this process.
        exact_weights: whether the float32 weights of the optimizer start as the module's own, instead of as what the
            conversion to the precision leaves of these.

    Raises:
        EngineSetupError: DeepSpeed refuses; its own error is the cause.
    """
    names = Names(module, user_state)
    groups = [] if optimizer is None else [list(group["params"]) for group in optimizer.param_groups if group["params"]]
    kept = _exact(deepspeed, groups) if exact_weights else {}
    if optimizer is not None:
        optimizer.state.clear()  # by number; the core hands it over by name when the engine is there
    try:
        engine, *_ = deepspeed.initialize(
            args=SimpleNamespace(device_rank=device.index if device.index is not None else local_rank),
            model=MethodDispatch(module),
            optimizer=optimizer,
            model_parameters=[parameter for parameter in module.parameters() if parameter.requires_grad],
            config=dict(config),
            dist_init_required=False,
        )
    except PoplinError:
        raise
    except Exception as error:  # assertions, pydantic's, its own: there is no common class
        raise EngineSetupError(
            f"DeepSpeed could not make an engine of {type(module).__name__}: {type(error).__name__}: "
            f"{_first_lines(error)}"
        ) from error
    if optimizer is not None:
        inner = engine.optimizer.optimizer
        if inner is not optimizer:  # it makes some optimizers anew: the user's goes on to be the one that counts
            optimizer.param_groups, optimizer.state = inner.param_groups, inner.state
    stage = int(get(config, (ZERO, "stage")))
    handle = Handle(EngineState(engine, stage, groups), names, optimizer)
    engine.__dict__[_ATTRIBUTE] = handle
    if optimizer is not None:
        engine.set_gradient_accumulation_boundary(False)
        for parameter, value in kept.items():
            put_master(handle.state, parameter, value)
    return engine


def configure_checkpointing(deepspeed: Any, config: Mapping[str, Any]) -> None:
    """Hand the settings to ``deepspeed.checkpointing``, whose ``checkpoint()`` the user's module calls."""
    section = config.get("activation_checkpointing")
    if not section:
        return
    deepspeed.checkpointing.configure(
        mpu_=None,
        partition_activations=bool(section.get("partition_activations")),
        contiguous_checkpointing=bool(section.get("contiguous_memory_optimization")),
        num_checkpoints=section.get("number_checkpoints"),
        checkpoint_in_cpu=bool(section.get("cpu_checkpointing")),
        synchronize=bool(section.get("synchronize_checkpoint_boundary")),
        profile=bool(section.get("profile")),
    )


def release(engine: Any) -> None:
    """Take the engine's hooks off the user's module, and let go of it where DeepSpeed would hold it for ever."""
    try:
        engine.destroy()
    except Exception as error:  # it is at its end anyway
        logging.getLogger(__name__).debug("destroying an engine: %s", error)
    stack = importlib.import_module("deepspeed.runtime.zero.parameter_offload").FWD_MODULE_STACK
    own = set(engine.module.modules())
    stack[:] = [module for module in stack if module not in own]


def _exact(deepspeed: Any, groups: list[list[nn.Parameter]]) -> dict[nn.Parameter, Tensor]:
    """Rank 0's float32 values of the parameters; none of those that are partitioned already."""
    exact = {}
    for group in groups:
        for parameter in group:
            if parameter.requires_grad and parameter.dtype == torch.float32 and not hasattr(parameter, "ds_id"):
                value = parameter.detach().clone()
                deepspeed.comm.broadcast(value, 0)
                exact[parameter] = value
    return exact


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or "(it says nothing)"


def checkpointing_module() -> Any:
    """``deepspeed.runtime.checkpoint_engine``."""
    return importlib.import_module("deepspeed.runtime.checkpoint_engine")
