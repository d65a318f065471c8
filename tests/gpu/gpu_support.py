"""What the tests here share: the device, a small model, and raw loops to compare with."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: The tests themselves are tried on the CPU by REHEARSE=1; what only a GPU has is skipped then.
REHEARSAL = os.environ.get("REHEARSE") == "1"
ACCELERATOR = "cpu" if REHEARSAL else "cuda"
DEVICE = torch.device("cpu" if REHEARSAL else "cuda:0")


def why_not() -> str | None:
    """Why nothing can run here, or None."""
    if REHEARSAL:
        return None
    from poplin.accelerators import CUDAAccelerator

    available, reason = CUDAAccelerator.availability()
    return None if available else f"needs a GPU: {reason}"


def model(width: int = 64, depth: int = 3, seed: int = 0) -> nn.Module:
    """A small network with normalisation, the same for the same arguments."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def batches(count: int = 20, size: int = 32, width: int = 64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets on the CPU, the same in every call."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, width, generator=generator), torch.randn(size, 1, generator=generator)) for _ in range(count)
    ]


def fabric_of(precision: str | None = None, **arguments: Any) -> Any:
    """A launched Fabric on one device."""
    from poplin import Fabric

    arguments = {"accelerator": ACCELERATOR, "devices": 1, "precision": precision} | arguments
    fabric = Fabric(**arguments)
    fabric.launch()
    return fabric


def raw_losses(precision: str, data: Any, clip: float | None = None, **optimizer_options: Any) -> list[float]:
    """Train by torch alone."""
    dtype = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(precision)
    net = model().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, **optimizer_options)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "16-mixed")
    losses = []
    for inputs, targets in data:
        inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype is not None):
            output = net(inputs)
        loss = nn.functional.mse_loss(output.float(), targets)
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def train(
    fabric: Any, net: Any, optimizer: Any, data: Any, clip: float | None = None, each: Callable[[], Any] | None = None
) -> list[float]:
    """Train by Fabric."""
    losses = []
    for inputs, targets in data:
        inputs, targets = fabric.to_device((inputs, targets))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        fabric.backward(loss)
        if clip is not None:
            fabric.clip_gradients(net, optimizer, max_norm=clip)
        optimizer.step()
        losses.append(loss.item())
        if each is not None:
            each()
    return losses
