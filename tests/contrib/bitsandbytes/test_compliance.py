"""Each precision against the public compliance suite, with the real library on the CPU."""

import pytest

from poplin.testing import PackagingCompliance
from poplin_bitsandbytes.compliance import BitsandbytesCompliance, Int8TrainingCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestNF4(BitsandbytesCompliance):
    name = "nf4"


class TestFP4DoublyQuantised(BitsandbytesCompliance):
    name = "fp4-dq"


class TestInt8(BitsandbytesCompliance):
    name = "int8"


class TestInt8Training(Int8TrainingCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-bitsandbytes"
