"""The compliance suite on the real DeepSpeed, at the stages that differ most."""

import pytest

from poplin.testing import StrategyCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestStage1(StrategyCompliance):
    name = "deepspeed_stage_1"
    limit = 120


class TestStage3(StrategyCompliance):
    name = "deepspeed_stage_3"
    limit = 120
