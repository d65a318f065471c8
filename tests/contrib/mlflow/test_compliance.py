"""The logger against the public compliance suite, with the real library; its database is read back."""

import pytest

from poplin.testing import PackagingCompliance
from poplin_mlflow.compliance import MLflowCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestMLflow(MLflowCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-mlflow"
