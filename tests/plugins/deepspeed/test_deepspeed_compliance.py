"""The compliance suites on the real DeepSpeed, the strategy's at the stages that differ most."""

import pytest

from poplin.testing import PackagingCompliance
from poplin_deepspeed.compliance import (
    DeepSpeedCheckpointIOCompliance,
    DeepSpeedCompliance,
    DeepSpeedStage3Compliance,
)

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestStage1(DeepSpeedCompliance):
    name = "deepspeed_stage_1"


class TestStage3(DeepSpeedStage3Compliance):
    pass


class TestCheckpointIO(DeepSpeedCheckpointIOCompliance):
    pass


class TestPackage(PackagingCompliance):
    distribution = "poplin-deepspeed"
