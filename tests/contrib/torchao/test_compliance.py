"""Each precision against the public compliance suite, with the real library on the CPU."""

import pytest
from torch import nn

from poplin.testing import PackagingCompliance, PrecisionCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class Model(nn.Module):
    """Two layers that are replaced, one that is too small for it, and a norm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 32)
        self.third = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, inputs):
        return self.last(self.norm(self.third(self.second(self.first(inputs)))))


class TestFloat8(PrecisionCompliance):
    name = "torchao-float8"
    tolerance = 0.3

    def model(self):
        return Model()


class TestInt8(PrecisionCompliance):
    name = "torchao-int8"
    tolerance = 0.3

    def model(self):
        return Model()


class TestPackage(PackagingCompliance):
    distribution = "poplin-torchao"
