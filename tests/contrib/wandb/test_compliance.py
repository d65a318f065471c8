"""The logger against the public compliance suite, with the real library; its offline files are read back."""

import pytest

from poplin.testing import PackagingCompliance
from poplin_wandb.compliance import WandbCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestWandb(WandbCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-wandb"
