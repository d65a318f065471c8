import pytest
import torch
from torch import nn

import poplin.checkpoint.state as checkpoint_state
from poplin.checkpoint import TorchCheckpointIO
from poplin.precision import Precision
from poplin.strategies import SingleDeviceStrategy


class Saver:
    """Saves and loads as Fabric does, on one device, without a Fabric."""

    def __init__(self):
        self.strategy = SingleDeviceStrategy(device="cpu", checkpoint_io=TorchCheckpointIO(), precision=Precision())

    def save(self, path, state, **kwargs):
        checkpoint_state.save(path, state, strategy=self.strategy, precision=self.strategy.precision, **kwargs)

    def save_async(self, path, state):
        return checkpoint_state.save_async(path, state, strategy=self.strategy, precision=self.strategy.precision)

    def load(self, path, state=None, strict=True, weights_only=None):
        return checkpoint_state.load(
            path, state, strict, weights_only, strategy=self.strategy, precision=self.strategy.precision
        )

    def load_raw(self, path, obj, strict=True, weights_only=None):
        checkpoint_state.load_raw(path, obj, strict, weights_only, strategy=self.strategy)


@pytest.fixture
def saver():
    return Saver()


@pytest.fixture
def trained():
    """A function that makes a small model with batch norm, its optimizer with state, and a scheduler."""

    def make(seed=0, steps=2, width=4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (seed + 1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1 + seed, gamma=0.5)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
            scheduler.step()
        return model, optimizer, scheduler

    return make
