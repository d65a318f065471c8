"""Two replicas of torch_xla. The real ones abort on the CPU in their first collective, so a stand-in for the runtime's
few calls serves them here (fakes/torch_xla): what is shown is what our strategy asks of it, and does with the answers.
"""

import pytest
import torch
from torch import nn

from poplin.testing import free_port
from poplin_tpu.shards import Shards

NEAR = 1e-6


@pytest.fixture(scope="module")
def replicas(tmp_path_factory, start, install_into, programs):
    folder = tmp_path_factory.mktemp("replicas")
    install_into(folder / "site", "torch_xla")
    return start(
        *(folder, programs / "replicas.py", folder), FAKE_REPLICAS="2", FAKE_PORT=str(free_port()), PJRT_DEVICE="TPU"
    )


def test_auto_takes_the_replicas_with_their_strategy_and_launcher(replicas):
    assert "strategy       xla " in replicas["explain"]
    assert "launcher       xla " in replicas["explain"]


def test_places(replicas):
    assert [one["place"] for one in replicas["ranks"]] == [[2, 0, 0, 0, True], [2, 1, 1, 0, False]]
    assert [one["data"] for one in replicas["ranks"]] == [[0, 2], [1, 2]]
    assert [one["data of this rank"] for one in replicas["ranks"]] == [[0, 2, 4], [1, 3, 5]]


def test_collectives(replicas):
    for one in replicas["ranks"]:
        assert one["all_gather"] == [[1, 2], [11, 12]]
        assert one["mean"] == [6, 7]
        assert one["sum"] == [12, 14]
        assert one["max"] == one["broadcast"] == [11, 12]
        assert one["mean of integers"] == [0.5]
        assert one["decisions"] == [False, True]
    assert [one["gradient"] for one in replicas["ranks"]] == [[2, 2], [6, 6]]  # both ranks' losses see both weights


def test_what_the_ranks_do_not_agree_on_is_an_error_on_each(replicas):
    for one in replicas["ranks"]:
        for name in ("shapes", "barriers", "unpicklable"):
            assert one[f"refused {name}"].startswith("CollectiveError"), name
        assert one["first"] is True
    assert "rank 1" in replicas["ranks"][0]["refused shapes"]
    assert replicas["ranks"][0]["first fails"] == "KeyError: 'of rank 0'"
    assert "has failed in rank_zero_first" in replicas["ranks"][1]["first fails"]


@pytest.mark.parametrize("case", ["plain", "closure", "accumulated"])
def test_training_equals_one_process_with_the_batches_of_both(replicas, case):
    from_single, apart, loaded, on_cpu = replicas[case]
    assert from_single < NEAR
    assert apart == loaded == on_cpu == 0


def test_a_step_left_out_after_clipping_does_not_cost_the_next_its_average(replicas):
    assert replicas["left out"] == [3, 3]  # twice the mean of 1 and 2


def test_the_failing_rank_is_the_one_to_see(replicas):
    told, notes = replicas["error"]
    assert told == "ValueError: of rank 1"
    assert "process 1" in notes[0]


def test_shards_of_two_ranks_become_whole_again():
    shards = Shards(nn.Linear(3, 5))
    for name, value in (("weight", torch.arange(15.0).reshape(5, 3)), ("bias", torch.arange(5.0))):
        shard = torch.empty(-(-value.numel() // 2))
        parts = [shards.part(value, shard, rank, 2) for rank in range(2)]
        assert [part.numel() for part in parts] == [shard.numel()] * 2
        assert torch.equal(shards.whole(name, parts), value)
