"""The checkpoint IO against the public compliance suite, with the real library."""

import pytest

from poplin.testing import CheckpointIOCompliance, PackagingCompliance

pytestmark = pytest.mark.extras


class TestSafetensors(CheckpointIOCompliance):
    name = "safetensors"
    suffix = ".safetensors"


class TestPackage(PackagingCompliance):
    distribution = "poplin-safetensors"
