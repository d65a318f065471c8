"""Double precision: ``64-true``."""

from __future__ import annotations

import torch

from poplin_precision.true import TruePrecision


class DoublePrecision(TruePrecision):
    """``64-true``: everything in float64. Outputs stay so, or the loss would lose what the model computed."""

    def __init__(self) -> None:
        super().__init__("64-true", torch.float64)
