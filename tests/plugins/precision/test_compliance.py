"""Each precision against the public compliance suite."""

from poplin.testing import PackagingCompliance, PrecisionCompliance
from poplin_precision.compliance import Float64Compliance


class TestFloat16Mixed(PrecisionCompliance):
    name = "16-mixed"


class TestBFloat16Mixed(PrecisionCompliance):
    name = "bf16-mixed"


class TestFloat16True(PrecisionCompliance):
    name = "16-true"


class TestBFloat16True(PrecisionCompliance):
    name = "bf16-true"


class TestFloat64True(Float64Compliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-precision"
