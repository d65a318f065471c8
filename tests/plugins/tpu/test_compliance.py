"""What can be asked of the package without a TPU and without its libraries, by the public compliance suites.

The rest runs with the libraries: `make test-tpu`.
"""

from poplin.testing import AcceleratorCompliance, EnvironmentCompliance, PackagingCompliance


class TestTPU(AcceleratorCompliance):
    name = "tpu"


class TestXLA(AcceleratorCompliance):
    name = "xla"


class TestEnvironment(EnvironmentCompliance):
    name = "xla"


class TestPackage(PackagingCompliance):
    distribution = "poplin-tpu"
