"""Each precision against the public compliance suite, with the real library on the CPU."""

import pytest
from torch import nn

from poplin.testing import PackagingCompliance, PrecisionCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class Model(nn.Module):
    """Layers large enough for blocks of 64 weights, and a norm that trains beside them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.norm = nn.LayerNorm(64)
        self.second = nn.Linear(64, 4)

    def forward(self, inputs):
        return self.second(self.norm(self.first(inputs)))


class OfBitsandbytes(PrecisionCompliance):
    tolerance = 0.3

    def model(self):
        return Model()


class TestNF4(OfBitsandbytes):
    name = "nf4"


class TestFP4DoublyQuantised(OfBitsandbytes):
    name = "fp4-dq"


class TestInt8(OfBitsandbytes):
    name = "int8"


class TestInt8Training(OfBitsandbytes):
    name = "int8-training"


class TestPackage(PackagingCompliance):
    distribution = "poplin-bitsandbytes"
