"""Mixed precision: float32 parameters, autocast forwards, and loss scaling for float16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import LBFGS, Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from poplin.errors import ArgumentValueError, SelectionError, UsageError
from poplin.precision import Precision, cast_floats

if TYPE_CHECKING:
    from poplin.selection import Selection

_DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class MixedPrecision(Precision):
    """``16-mixed`` or ``bf16-mixed``: torch's autocast on the device type of the run; outputs come back in float32.

    float16 needs its loss scaled. One scaler serves all optimizers. It is brought up to date once an iteration: at the
    first backward pass after a step, so that two optimizers which step one after the other are unscaled alike.

    Args:
        precision: ``"16-mixed"`` or ``"bf16-mixed"``.
        device: torch's device type; None learns it from the run.
        scaler: a GradScaler of your own, for ``16-mixed``.

    Raises:
        ArgumentValueError: another name, or a scaler where nothing is scaled.
    """

    converts_data = True
    autocasts = True

    def __new__(cls, precision: str = "16-mixed", *args: Any, **kwargs: Any) -> MixedPrecision:
        unscaled = precision == "bf16-mixed" and cls is MixedPrecision
        return super().__new__(UnscaledMixedPrecision if unscaled else cls)

    def __getnewargs__(self) -> tuple[str]:
        return (self.precision,)

    def __init__(
        self, precision: str = "16-mixed", device: str | None = None, scaler: GradScaler | None = None
    ) -> None:
        if precision not in _DTYPES:
            raise ArgumentValueError(f"MixedPrecision is '16-mixed' or 'bf16-mixed', and {precision!r} was asked for.")
        if scaler is not None and precision != "16-mixed":
            raise ArgumentValueError(f"{precision!r} scales no loss: a scaler is for '16-mixed'. Leave it out.")
        self.precision = precision
        self.dtype = _DTYPES[precision]
        self.scales_loss = precision == "16-mixed"
        self.scaler = scaler
        self._device_given = device
        if device is not None:
            self.device_type = device
        self._stepped = False  # an optimizer stepped since the scale was last brought up to date
        self._unscaled: set[int] = set()  # ids of the optimizers unscaled since then
        self._found_inf: WeakIdKeyDictionary = WeakIdKeyDictionary()  # optimizer → what its last step met

    def bind(self, selection: Selection) -> None:
        """Learn the device type, and make the scaler for it.

        Raises:
            SelectionError: torch can't autocast, or scale, there.
        """
        super().bind(selection)
        if self._device_given is not None:
            self.device_type = self._device_given
        if not torch.amp.is_autocast_available(self.device_type):
            raise SelectionError(
                f"precision={self.precision!r}: this torch ({torch.__version__}) has no autocast for device type "
                f"{self.device_type!r}. Use '32-true', or '{self.precision.partition('-')[0]}-true'."
            )
        if self.scales_loss and self.scaler is None:
            self.scaler = GradScaler(device=self.device_type)
            if not self.scaler.is_enabled():
                raise SelectionError(
                    f"precision='16-mixed': torch's GradScaler does not work on device type {self.device_type!r} here, "
                    "and float16 would train unscaled. Use 'bf16-mixed' or '32-true'."
                )

    def forward_context(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype)

    def convert_input(self, data: Any) -> Any:
        return cast_floats(data, torch.float32)

    def convert_output(self, data: Any) -> Any:
        return cast_floats(data, torch.float32)

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        if self.scaler is not None:
            self._update()
            tensor = self.scaler.scale(tensor)
        super().backward(tensor, model, *args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        scaler = self.scaler
        if scaler is None:
            return super().optimizer_step(optimizer, closure, **kwargs)
        if isinstance(optimizer, LBFGS):
            raise UsageError(
                "LBFGS evaluates its closure several times within one step, which loss scaling can't follow. "
                "Use precision 'bf16-mixed' or '32-true' with it."
            )
        loss = closure() if closure is not None else None
        result = scaler.step(optimizer, **kwargs)
        self._found_inf[optimizer] = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        self._stepped = True
        return loss if closure is not None else result

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        if self.scaler is not None and id(optimizer) not in self._unscaled:
            self._unscaled.add(id(optimizer))
            self.scaler.unscale_(optimizer)

    def step_was_skipped(self, optimizer: Optimizer) -> bool:
        found: Mapping[torch.device, Tensor] = self._found_inf.get(optimizer, {})
        return any(bool(value.item()) for value in found.values())

    def state_dict(self) -> dict[str, Any]:
        if self.scaler is None:
            return {}
        self._update()
        return dict(self.scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """What can travel to another process: not what was met in the optimizers of this one."""
        self._update()  # torch's scaler can't be pickled in between
        return {**self.__dict__, "_found_inf": None, "_unscaled": set(), "_stepped": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._found_inf = WeakIdKeyDictionary()

    def _update(self) -> None:
        """Bring the scale up to date after a step; gradients can be unscaled again then."""
        if self._stepped:
            assert self.scaler is not None
            self.scaler.update()
            self._stepped = False
            self._unscaled.clear()


class UnscaledMixedPrecision(MixedPrecision):
    """What ``MixedPrecision("bf16-mixed")`` makes: it has no part in backward and step, which cost nothing then."""

    backward = Precision.backward
    optimizer_step = Precision.optimizer_step
    step_was_skipped = Precision.step_was_skipped
