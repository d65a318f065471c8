"""The launcher against the public compliance suite, on a local Ray that it starts."""

import pytest

from poplin.testing import LauncherCompliance, PackagingCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(600)]


class TestRay(LauncherCompliance):
    name = "ray"
    limit = 240
    # Ray's own daemons look now and then whether those that started them live, and its agent may then try for 60 s to
    # tell a control store that is gone, too
    patience = 150


class TestPackage(PackagingCompliance):
    distribution = "poplin-ray"
