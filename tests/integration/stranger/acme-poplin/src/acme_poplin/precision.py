"""Acme's own mixed precision."""

import torch

from poplin.precision import Precision


class AcmePrecision(Precision):
    precision = "acme-mixed"
    device_types = ("acme",)
    autocasts = True

    def __init__(self, dtype="bfloat16"):
        self.dtype = getattr(torch, dtype)

    def forward_context(self):
        return torch.autocast(self.device_type, dtype=self.dtype)
