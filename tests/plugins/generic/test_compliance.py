"""The accelerators and their package against the public compliance suites; as far as can be asked without devices.

A device that torch sees for real is tested in tests/integration/stranger.
"""

from poplin.testing import AcceleratorCompliance, PackagingCompliance


class TestXPU(AcceleratorCompliance):
    name = "xpu"


class TestNPU(AcceleratorCompliance):
    name = "npu"


class TestHPU(AcceleratorCompliance):
    name = "hpu"


class TestMTIA(AcceleratorCompliance):
    name = "mtia"


class TestTorch(AcceleratorCompliance):
    name = "poplin-generic:torch"


class TestPackage(PackagingCompliance):
    distribution = "poplin-generic"
