"""`poplin estimate` for ZeRO: each stage shares one thing more."""

import pytest
from torch import nn

from poplin.cli.planning import World, plan

PARAMETERS = (2 * 1024 * 1024 + 2 * 1024) * 4

pytestmark = pytest.mark.extras


def wide():
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))


@pytest.mark.parametrize(("stage", "parameters", "gradients"), [(1, 1, 1), (2, 1, 8), (3, 8, 8)])
def test_each_stage_shares_one_thing_more(stage, parameters, gradients):
    planned = plan(wide, f"deepspeed_stage_{stage}", World.of(8, 8))
    assert planned.memory is not None, planned.reason
    assert planned.memory.parameters == PARAMETERS // parameters
    assert planned.memory.gradients == PARAMETERS // gradients
    # two moments, and the float32 weights that the optimizer steps
    assert planned.memory.optimizer == pytest.approx(3 * PARAMETERS / 8, rel=1e-4)


def test_offloading_moves_the_optimizer_to_the_host():
    planned = plan(wide, "deepspeed_stage_2_offload", World.of(8, 8))
    assert planned.memory is not None, planned.reason
    assert planned.memory.optimizer == 0
    assert planned.memory.host == pytest.approx(3 * PARAMETERS / 8, rel=1e-4)
