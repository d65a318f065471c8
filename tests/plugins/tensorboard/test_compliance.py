"""The logger and its package against the public compliance suites; its event files are read back."""

from poplin.testing import PackagingCompliance
from poplin_tensorboard.compliance import TensorBoardCompliance


class TestTensorBoard(TensorBoardCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-tensorboard"
