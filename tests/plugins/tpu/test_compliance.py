"""What can be asked of the package without a TPU and without its libraries, by the public compliance suites.

The rest runs with the libraries: `make test-tpu`.
"""

from poplin.testing import CheckpointIOCompliance, PackagingCompliance
from poplin_tpu.compliance import (
    TPUAcceleratorCompliance,
    XLAEnvironmentCompliance,
    XLALauncherCompliance,
    XLAPrecisionCompliance,
)


class TestTPU(TPUAcceleratorCompliance):
    name = "tpu"


class TestXLA(TPUAcceleratorCompliance):
    name = "xla"


class TestBFloat16(XLAPrecisionCompliance):
    name = "xla-bf16-true"


class TestFloat16(XLAPrecisionCompliance):
    name = "xla-16-true"


class TestLauncher(XLALauncherCompliance):
    pass


class TestEnvironment(XLAEnvironmentCompliance):
    pass


class TestCheckpointIO(CheckpointIOCompliance):
    name = "xla"


class TestPackage(PackagingCompliance):
    distribution = "poplin-tpu"
