"""The launcher against the public compliance suite, on a local Ray that it starts."""

import pytest

from poplin.testing import LauncherCompliance, PackagingCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(600)]


class TestRay(LauncherCompliance):
    name = "ray"
    limit = 240
    patience = 60  # Ray's own daemons look now and then whether those that started them live


class TestPackage(PackagingCompliance):
    distribution = "poplin-ray"
