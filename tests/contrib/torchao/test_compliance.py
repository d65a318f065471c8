"""Each precision against the public compliance suite, with the real library on the CPU."""

import pytest

from poplin.testing import PackagingCompliance
from poplin_torchao.compliance import TorchAOCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestFloat8(TorchAOCompliance):
    name = "torchao-float8"


class TestInt8(TorchAOCompliance):
    name = "torchao-int8"


class TestPackage(PackagingCompliance):
    distribution = "poplin-torchao"
