"""The launcher against the public compliance suite, on a local Ray that it starts."""

import pytest

from poplin.testing import PackagingCompliance
from poplin_ray.compliance import RayCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(600)]


class TestRay(RayCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-ray"
