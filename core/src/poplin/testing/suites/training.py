"""A small training, as a strategy does it and as plain torch does it, for the checks of several suites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from poplin import Fabric

WIDTH, CLASSES, BATCH, LEARNING_RATE = 8, 4, 8, 0.05


class SmallNet(nn.Module):
    """Two linear layers and a norm; widths that divide by small world sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """One output for each of ``CLASSES``: ``(batch, WIDTH)`` to ``(batch, CLASSES)``."""
        out: Tensor = self.head(torch.tanh(self.norm(self.hidden(x))))
        return out

    def scaled_loss(self, x: Tensor, y: Tensor, scale: float) -> Tensor:
        """A method that is no forward, and runs one."""
        return scale * nn.functional.mse_loss(self(x), y)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A module whose initial values follow from the seed."""
    torch.manual_seed(seed)
    return make()


def batches(steps: int, start: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Global batches, the same on every rank."""
    made = []
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(100 + step)
        made.append((torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, CLASSES, generator=generator)))
    return made


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the checks."""
    return torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)


def stateless_optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that remembers nothing from step to step."""
    return torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)


def plain_optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that is itself at home in float16, where Adam's small denominators are zero."""
    return torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)


def plain_training(
    module: nn.Module,
    steps: int,
    *,
    clip: Mapping[str, float] | None = None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = optimizer_of,
) -> list[float]:
    """Train in this process with nothing but torch, on the whole of each batch.

    Args:
        module: what is trained.
        steps: how many.
        clip: arguments of ``clip_gradients``.
        make_optimizer: makes the optimizer of a module.

    Returns:
        The norm before clipping at each step, if the norm is clipped.
    """
    optimizer = make_optimizer(module)
    norms = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        norm = _plain_clip(module, clip or {})
        norms += [] if norm is None else [norm]
        optimizer.step()
    return norms


def _plain_clip(module: Any, clip: Mapping[str, float]) -> float | None:
    if "max_norm" in clip:
        return float(nn.utils.clip_grad_norm_(module.parameters(), clip["max_norm"], clip.get("norm_type", 2.0)))
    if "clip_val" in clip:
        nn.utils.clip_grad_value_(module.parameters(), clip["clip_val"])
    return None


def fabric_training(
    fabric: Fabric,
    module: Any,
    optimizer: Any,
    steps: int,
    *,
    start: int = 0,
    micro_batches: int = 1,
    clip: Mapping[str, float] | None = None,
    clip_by_torch: bool = False,
) -> list[float]:
    """Train a set-up module on this process's share of each batch.

    Args:
        fabric: that set it up.
        module: what ``setup`` returned.
        optimizer: what ``setup`` returned.
        steps: how many.
        start: number of the first step.
        micro_batches: in how many parts this process takes its share; gradients are synchronised after the last.
        clip: arguments of ``clip_gradients``.
        clip_by_torch: clip what gradients this process has by torch's functions, and not by ``clip_gradients``.

    Returns:
        The norm before clipping at each step, if the norm is clipped.
    """
    norms = []
    for x, y in batches(steps, start):
        parts = list(zip(*(share(fabric, tensor).chunk(micro_batches) for tensor in (x, y)), strict=True))
        for number, (inputs, targets) in enumerate(parts):
            with fabric.no_backward_sync(module, enabled=number + 1 < len(parts)):
                loss = nn.functional.mse_loss(module(inputs), targets) / len(parts)
                fabric.backward(loss, model=module)
        norm: Any = None
        if clip_by_torch:
            norm = _plain_clip(module, clip or {})
        elif clip:
            norm = fabric.clip_gradients(module, optimizer, **clip)  # type: ignore[arg-type]
        norms += [] if norm is None else [float(norm)]
        optimizer.step()
        optimizer.zero_grad()
    return norms


def share(fabric: Fabric, batch: Tensor) -> Tensor:
    """This process's part of a global batch, on its device."""
    strategy = fabric.strategy
    return fabric.to_device(batch.chunk(strategy.data_world_size)[strategy.data_rank])
