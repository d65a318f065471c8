"""Loss scaling where gradients are sharded: all ranks agree whether a step is skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import LBFGS, Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from poplin.errors import UsageError


class ShardedScaler(GradScaler):
    """torch's scaler; a gradient that isn't finite on one rank is so for all."""

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Unscale this rank's parts (torch's own knows no sharded gradients), and ask the others what they met."""
        parts: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                local = gradient._local_tensor if isinstance(gradient, DTensor) else gradient
                parts.setdefault((local.device, local.dtype), []).append(local)
        found: dict[torch.device, Tensor] = {}
        for (device, _), gradients in parts.items():
            flag = found.setdefault(device, found_inf.to(device, copy=True))
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, inv_scale.to(device))
        home = found_inf.device
        total = torch.stack([flag.to(home) for flag in found.values()] or [found_inf.clone()]).amax(0)
        if dist.is_initialized():
            dist.all_reduce(total, dist.ReduceOp.MAX)
        return {device: total.to(device) for device in found} or {home: total}


class Scaling:
    """One scaler for all optimizers, brought up to date once an iteration: before the first backward after a step.

    Args:
        scaler: the scaler.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler
        self._stepped = False
        self._unscaled: set[int] = set()
        self._found: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        self._update()
        return self.scaler.scale(loss)

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None, **kwargs: Any) -> Any:
        """Step, unless a gradient is not finite."""
        if isinstance(optimizer, LBFGS):
            raise UsageError(
                "LBFGS evaluates its closure several times within one step, which loss scaling can't follow. "
                "Use precision 'bf16-mixed' or '32-true' with it."
            )
        loss = closure() if closure is not None else None
        result = self.scaler.step(optimizer, **kwargs)
        self._found[optimizer] = self.scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        self._stepped = True
        return loss if closure is not None else result

    def unscale(self, optimizer: Optimizer) -> None:
        """Undo the scaling of its gradients, once between two steps."""
        if id(optimizer) not in self._unscaled:
            self._unscaled.add(id(optimizer))
            self.scaler.unscale_(optimizer)

    def skipped(self, optimizer: Optimizer) -> bool:
        """Whether its last step moved nothing."""
        found: Mapping[torch.device, Tensor] = self._found.get(optimizer, {})
        return any(bool(value.item()) for value in found.values())

    def state_dict(self) -> dict[str, Any]:
        """The scaler's."""
        self._update()
        return dict(self.scaler.state_dict())

    def __getstate__(self) -> dict[str, Any]:
        """What can travel to another process: not what was met in the optimizers of this one."""
        self._update()  # torch's scaler can't be pickled in between
        return {"scaler": self.scaler}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["scaler"])  # type: ignore[misc]

    def _update(self) -> None:
        if self._stepped:
            self.scaler.update()
            self._stepped = False
            self._unscaled.clear()
