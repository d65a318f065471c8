"""The compliance suite of the precisions."""

from __future__ import annotations

import torch
from torch import nn

from poplin.testing import PrecisionCompliance


class Model(nn.Module):
    """Two layers that are replaced, one that is too small for it, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 32)
        self.third = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """``(batch, 8)`` to ``(batch, 4)``."""
        outputs: torch.Tensor = self.last(self.norm(self.third(self.second(self.first(inputs)))))
        return outputs


class TorchAOCompliance(PrecisionCompliance):
    """A model of which layers are replaced, and numbers of 8 bits."""

    tolerance = 0.3

    def model(self) -> nn.Module:
        """Its own: the small one of the suite has no layer that can be replaced."""
        return Model()
