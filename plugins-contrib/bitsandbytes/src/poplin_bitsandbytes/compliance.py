"""The compliance suite of the precisions."""

from __future__ import annotations

import torch
from torch import nn

from poplin.testing import PrecisionCompliance


class Model(nn.Module):
    """Layers large enough for blocks of 64 weights, and a norm that trains beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.norm = nn.LayerNorm(64)
        self.second = nn.Linear(64, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """``(batch, 8)`` to ``(batch, 4)``."""
        outputs: torch.Tensor = self.second(self.norm(self.first(inputs)))
        return outputs


class BitsandbytesCompliance(PrecisionCompliance):
    """A model that has something to quantise, and numbers of 4 or 8 bits."""

    tolerance = 0.3

    def model(self) -> nn.Module:
        """Its own: layers of the suite's small one are smaller than a block."""
        return Model()


class Int8TrainingCompliance(BitsandbytesCompliance):
    """The one that trains what it has replaced: it is checked beside another one of its class."""

    name = "int8-training"
