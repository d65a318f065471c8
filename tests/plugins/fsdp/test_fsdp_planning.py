"""`poplin estimate`: what the strategies of this package would hold, in worlds that are not here."""

import pytest
import torch
from torch import nn

from poplin.cli.planning import World, plan

#: of `wide`: both weights and the first bias divide by 1,024, the last one is made to
PARAMETERS = (1024 * 1024 + 1024 + 1024 * 1024 + 1024) * 4
STEPS = 4 * 4  # AdamW's counters


def wide():
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))


@pytest.mark.parametrize("size", [8, 64, 1024])
def test_fsdp_holds_its_share(size):
    memory = plan(wide, "fsdp", World.of(size, 8)).memory
    share = PARAMETERS // size
    assert (memory.parameters, memory.gradients, memory.buffers, memory.host) == (share, share, 0, 0)
    assert memory.optimizer == 2 * share + STEPS
    assert memory.communication >= PARAMETERS  # gathered whole, as one unit
    assert not torch.distributed.is_initialized()


def test_hsdp_shards_over_the_devices_of_a_node():
    assert plan(wide, "hsdp", World.of(64, 8)).memory.parameters == PARAMETERS // 8


def test_offloading_moves_it_to_the_host():
    memory = plan(wide, "fsdp_cpu_offload", World.of(8, 8)).memory
    share = PARAMETERS // 8
    assert (memory.parameters, memory.gradients, memory.optimizer) == (0, 0, 0)
    assert memory.host == 4 * share + STEPS


def test_what_needs_a_plan_says_so():
    refused = plan(wide, "tensor_parallel", World.of(8, 8))
    assert refused.memory is None
    assert "neither a function nor a plan" in refused.reason
