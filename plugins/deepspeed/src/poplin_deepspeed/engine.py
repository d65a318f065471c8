"""What is asked of DeepSpeed's engine, beyond its own methods: gradients that end at the step, not at a count.

Poplin's loops call ``backward`` as often as they like and then ``step``. The engine wants to know before a backward
pass whether it is the last one. So it is told that none is, gradients add up, and :func:`finish_gradients` does what
the engine would have done in the last one, when the step comes (or clipping, which wants the norm before).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from poplin.errors import NonFiniteGradientsError
from poplin_deepspeed.errors import EngineLimitError

#: Attribute of a module at stage 3: how many backward passes are to come.
_VISITS = "applied_pre_backward_ref_cnt"


class EngineState:
    """What this package knows of one engine.

    Args:
        engine: DeepSpeed's.
        stage: of ZeRO.
        groups: the user's parameters in each of the optimizer's groups, as they were before the engine flattened them.
    """

    def __init__(self, engine: Any, stage: int, groups: list[list[nn.Parameter]]) -> None:
        self.engine = engine
        self.stage = stage
        self.groups = groups
        #: What the optimizer steps; everything else is frozen, for the engine.
        self.optimized = {parameter for group in groups for parameter in group if parameter.requires_grad}
        self.finished = False  # the gradients are ready for the step
        #: What the config says; clipping for one step puts another one in its place.
        self.clip_grad: float = getattr(engine.optimizer, "clip_grad", 0.0)

    @property
    def zero(self) -> Any:
        """DeepSpeed's optimizer around the user's."""
        return self.engine.optimizer

    @property
    def trains(self) -> bool:
        """Whether it has an optimizer."""
        return bool(self.groups)


def begin_backward(state: EngineState) -> None:
    """Called before a backward pass: it adds to the gradients that are there."""
    _reopen(state)
    # Two backward passes after one forward: without this, the second would take the place of the first (stage 3).
    state.zero.clear_backward_seen_flag()


def finish_gradients(state: EngineState) -> None:
    """Reduce and partition what backward passes have added up; once until the next backward or step."""
    if state.finished:
        return
    engine = state.engine
    engine.set_gradient_accumulation_boundary(True)
    if state.stage == 1:
        engine.allreduce_gradients()
    else:
        state.zero.finalize_gradient_accumulation_boundary()
    state.finished = True


def has_gradients(state: EngineState) -> bool:
    """Whether a backward pass has reached this engine since its last step."""
    if state.finished:
        return True
    zero = state.zero
    if any(p.grad is not None or getattr(p, "grad_accum", None) is not None for p in state.optimized):
        return True
    if state.stage == 3:
        return bool(zero._epilogue_ran_this_backward or zero.micro_step_id > 0)
    kept = [*getattr(zero, "all_grad_tensors", {}).values(), *zero.averaged_gradients.values()]
    return any(value is not None for value in kept) or bool(getattr(zero, "_offload_accumulated_param_ids", None))


def forget_gradients(state: EngineState) -> None:
    """What ``zero_grad`` means: nothing is left of earlier backward passes."""
    zero = state.zero
    for parameter in state.optimized:
        if parameter.device.type == "cpu":  # DeepSpeed would ask for a stream there
            parameter.grad = None
    zero.zero_grad(set_to_none=True)
    zero.clear_backward_seen_flag()
    if state.stage == 3:
        zero.micro_step_id = 0
        zero._offload_boundary_param_ids = set()
        for gradients in zero.averaged_gradients.values():
            for gradient in gradients or ():
                gradient.zero_()  # a parameter that the next passes leave out would keep what it had
    else:
        for kept in (zero.all_grad_tensors, zero.averaged_gradients):
            for key in kept:
                kept[key] = None
        zero.micro_step_id = -1
        if getattr(zero, "cpu_offload", False):
            zero._offload_accumulated_param_ids = set()
            for flat in zero.single_partition_of_fp32_groups:
                if flat.grad is not None:
                    flat.grad.zero_()
    if hasattr(zero, "norm_for_param_grads"):
        zero.reset_cpu_buffers()
    _reopen(state)


def total_norm(state: EngineState) -> Tensor:
    """The 2-norm of all gradients, which must be finished; infinite where one isn't finite. A collective."""
    zero = state.zero
    if state.stage == 3:
        norms = [torch.as_tensor(norm, dtype=torch.float32).reshape(()) for norm in zero._get_norm_groups()]
        invalid = any(float(norm) < 0 for norm in norms)
        norm = torch.linalg.vector_norm(torch.stack(norms))
    else:
        norm = torch.as_tensor(zero.scaled_global_norm(), dtype=torch.float32).reshape(())
        invalid = float(norm) < 0
    if invalid:  # DeepSpeed's mark for what isn't finite
        return torch.full_like(norm, math.inf)
    unscaled: Tensor = norm / zero.loss_scale
    return unscaled


def clip(state: EngineState, max_norm: float, error_if_nonfinite: bool) -> Tensor:
    """Let the next step clip the total norm to ``max_norm``, and return what it is now. A collective.

    Raises:
        EngineLimitError: the greatest norm is not above 0.
        NonFiniteGradientsError: the norm is not finite, and that is to be an error.
    """
    if not max_norm > 0:
        raise EngineLimitError(f"DeepSpeed clips to a norm above 0, and max_norm={max_norm!r} was asked for.")
    if not has_gradients(state):
        return torch.zeros(())
    finish_gradients(state)
    norm = total_norm(state)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise NonFiniteGradientsError(
            "The total norm of the gradients is not finite, so they can't be clipped. Call clip_gradients(..., "
            "error_if_nonfinite=False) to go on: DeepSpeed then skips the step, or takes it with what there is."
        )
    state.zero.clip_grad = float(max_norm)
    return norm


def step(state: EngineState) -> None:
    """One step of the engine; nothing happens if no backward pass has reached it."""
    engine = state.engine
    try:
        if not has_gradients(state):
            return
        finish_gradients(state)
        engine.step()
        if state.stage == 3 and not state.zero.offload_optimizer:
            _zero_partitions(state)
    finally:
        engine._running_engine_step = False
        state.zero.clip_grad = state.clip_grad
        _reopen(state)


def _zero_partitions(state: EngineState) -> None:
    """A parameter that the next backward passes leave out has no gradient, and not its last one."""
    for partition in _gradient_partitions(state.zero):
        partition.zero_()


def _gradient_partitions(zero: Any) -> Iterator[Tensor]:
    partitions = getattr(zero, "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition", {})
    yield from partitions.values()


def _reopen(state: EngineState) -> None:
    state.finished = False
    state.engine.set_gradient_accumulation_boundary(False)


def abandon(state: EngineState) -> None:
    """Give up the iteration that the engine is in the middle of."""
    engine, zero = state.engine, state.zero
    engine._running_engine_step = False
    zero._backward_active_depth = 0
    zero._remaining_grad_acc_hooks = 0
    for bucket in getattr(zero, "ipg_buckets", {}).values():
        bucket.clear_params() if hasattr(bucket, "clear_params") else bucket.clear()
    if hasattr(zero, "params_already_reduced"):
        reduced = zero.params_already_reduced
        for key in reduced if isinstance(reduced, dict) else range(len(reduced)):
            reduced[key] = False
    if state.stage == 3:
        _release_parameters(state)
    else:
        zero.ready_for_gradients = False
    forget_gradients(state)


def is_in_backward(state: EngineState) -> bool:
    """Whether a backward pass has entered this engine and has not left it."""
    return bool(state.zero._backward_active_depth > 0)


def _release_parameters(state: EngineState) -> None:
    """Partition the parameters that an interrupted pass had gathered, and forget what it was still to visit."""
    zero = state.zero
    zero.parameter_offload.release_backward_leftovers()
    zero._partition_all_parameters()
    for module in state.engine.module.modules():
        for name in (_VISITS, "ds_grads_remaining"):
            if name in module.__dict__:
                setattr(module, name, 0)


def backward(state: EngineState, loss: Tensor, retain_graph: bool) -> None:
    """Run the engine's backward pass.

    At stage 3 each part of the module counts how often a backward pass has yet to come by, to gather its parameters.
    If the graph is kept, another pass may come by all of them again.
    """
    modules = state.engine.module.modules() if retain_graph and state.stage == 3 else ()
    visits = [(module, module.__dict__[_VISITS]) for module in modules if _VISITS in module.__dict__]
    state.engine.backward(loss, retain_graph=retain_graph)
    for module, count in visits:
        setattr(module, _VISITS, count)
