"""The accelerator and its package against the public compliance suites; without a Mac, as far as can be asked."""

from poplin.testing import AcceleratorCompliance, PackagingCompliance


class TestMPS(AcceleratorCompliance):
    name = "mps"


class TestPackage(PackagingCompliance):
    distribution = "poplin-mps"
