"""The precisions of sharded modules: torch's ``MixedPrecisionPolicy``, from the name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from poplin.errors import ArgumentValueError
from poplin.precision import DefaultDtype, Precision, cast_floats
from poplin_fsdp.materialise import recorded
from poplin_fsdp.scaling import Scaling, ShardedScaler

if TYPE_CHECKING:
    from poplin.selection import Selection


class _Formats(NamedTuple):
    #: Of the parameters that the optimizer steps.
    parameters: torch.dtype
    #: In which a forward computes.
    computing: torch.dtype
    #: In which gradients are summed over ranks.
    reducing: torch.dtype


_FORMATS = {
    "32-true": _Formats(torch.float32, torch.float32, torch.float32),
    "16-mixed": _Formats(torch.float32, torch.float16, torch.float32),
    "bf16-mixed": _Formats(torch.float32, torch.bfloat16, torch.float32),
    "16-true": _Formats(torch.float16, torch.float16, torch.float16),
    "bf16-true": _Formats(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "64-true": _Formats(torch.float64, torch.float64, torch.float64),
}
#: The names of the precisions that sharded modules have.
PRECISIONS = tuple(_FORMATS)


class FSDPPrecision(Precision):
    """The number formats in which a sharded module is kept, gathered, computed and reduced.

    With ``...-mixed``, parameters and optimizer states stay in float32; they are gathered, and layers computed, in
    half precision (under torch's autocast, for what mixes formats), gradients are reduced in float32, and what the
    whole module returns is float32 again. Buffers stay what they are. With ``...-true`` everything is in that format.
    ``16-mixed`` scales the loss; all ranks skip a step together.

    Args:
        precision: ``"32-true"``, ``"16-mixed"``, ``"bf16-mixed"``, ``"16-true"``, ``"bf16-true"`` or ``"64-true"``.
        scaler: a GradScaler of your own, for ``"16-mixed"``.

    Raises:
        ArgumentValueError: another name, or a scaler where nothing is scaled.
    """

    def __init__(self, precision: str = "32-true", scaler: torch.amp.GradScaler | None = None) -> None:
        if precision not in _FORMATS:
            raise ArgumentValueError(
                f"FSDPPrecision is one of {', '.join(map(repr, PRECISIONS))}, and not {precision!r}."
            )
        if scaler is not None and precision != "16-mixed":
            raise ArgumentValueError(f"{precision!r} scales no loss: a scaler is for '16-mixed'. Leave it out.")
        self.precision = precision
        self._formats = _FORMATS[precision]
        mixed = precision.endswith("-mixed")
        self.scales_loss = precision == "16-mixed"
        self.autocasts = mixed
        self.converts_module = not mixed and precision != "32-true"
        self.converts_data = self.converts_module
        self._scaler = scaler
        self._scaling: Scaling | None = None
        #: How each group of parameters is gathered and reduced.
        self.policy = _policy(self._formats)
        #: The same for the module as a whole, which alone returns the format that the loss is computed in.
        self.root_policy = dataclasses.replace(self.policy, output_dtype=torch.float32) if mixed else self.policy

    def by_autocast(self) -> FSDPPrecision:
        """This precision, for a module that no policy of the strategy serves: the user's own function shards it."""
        self.converts_data = self.converts_data or self.autocasts
        return self

    def bind(self, selection: Selection) -> None:
        """Learn the device type, and make the scaler for it."""
        super().bind(selection)
        if self.scales_loss:
            self._scaling = Scaling(self._scaler or ShardedScaler(device=self.device_type))

    def convert_module(self, module: nn.Module) -> nn.Module:
        with recorded(module, torch.device(self.device_type)):
            return module.to(self._formats.parameters)

    def convert_input(self, data: Any) -> Any:
        return cast_floats(data, self._formats.parameters)

    def convert_output(self, data: Any) -> Any:
        return data if self._formats.computing is torch.float64 else cast_floats(data, torch.get_default_dtype())

    def forward_context(self) -> AbstractContextManager[Any]:
        if self.autocasts:
            return torch.autocast(self.device_type, dtype=self._formats.computing)
        return DefaultDtype(self._formats.computing) if self.converts_module else nullcontext()

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self._formats.parameters) if self.converts_module else nullcontext()

    def module_init_context(self) -> AbstractContextManager[Any]:
        return self.tensor_init_context()

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        if self._scaling is not None:
            tensor = self._scaling.scale(tensor)
        super().backward(tensor, model, *args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        if self._scaling is None:
            return super().optimizer_step(optimizer, closure, **kwargs)
        return self._scaling.step(optimizer, closure, **kwargs)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        if self._scaling is not None:
            self._scaling.unscale(optimizer)

    def step_was_skipped(self, optimizer: Optimizer) -> bool:
        return self._scaling is not None and self._scaling.skipped(optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._scaling is None else self._scaling.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._scaling is not None and state:
            self._scaling.scaler.load_state_dict(state)


class UnscaledFSDPPrecision(FSDPPrecision):
    """What is made for the names that scale nothing: backward and step are torch's own, and cost nothing."""

    backward = Precision.backward
    optimizer_step = Precision.optimizer_step
    step_was_skipped = Precision.step_was_skipped
    unscale_gradients = Precision.unscale_gradients


class PlainFSDPPrecision(UnscaledFSDPPrecision):
    """``32-true``: a forward has no context either."""

    forward_context = Precision.forward_context


def make_precision(name: str) -> FSDPPrecision | None:
    """The precision for the canonical ``name``; None if sharded modules have none of that name."""
    if name not in _FORMATS:
        return None
    if name == "32-true":
        return PlainFSDPPrecision(name)
    return FSDPPrecision(name) if name == "16-mixed" else UnscaledFSDPPrecision(name)


def _policy(formats: _Formats) -> MixedPrecisionPolicy:
    if formats.parameters is formats.computing is formats.reducing:
        return MixedPrecisionPolicy(cast_forward_inputs=False)  # the precision casts the module's inputs, once
    return MixedPrecisionPolicy(param_dtype=formats.computing, reduce_dtype=formats.reducing)


def norms_with_statistics(module: nn.Module) -> list[nn.Module]:
    """The batch norms in ``module``: they compute in the format of their statistics, which are buffers."""
    return [part for part in module.modules() if part is not module and isinstance(part, _BatchNorm)]


def policy_for(group: Sequence[nn.Module], policy: MixedPrecisionPolicy) -> MixedPrecisionPolicy:
    """``policy``, but for a group of batch norms, which are gathered and computed in float32."""
    if policy.param_dtype is not None and all(isinstance(unit, _BatchNorm) for unit in group):
        return MixedPrecisionPolicy(param_dtype=torch.float32)
    return policy
