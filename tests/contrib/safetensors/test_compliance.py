"""The checkpoint IO against the public compliance suite, with the real library."""

import pytest

from poplin.testing import PackagingCompliance
from poplin_safetensors.compliance import SafetensorsCompliance

pytestmark = pytest.mark.extras


class TestSafetensors(SafetensorsCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-safetensors"
