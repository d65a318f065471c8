"""Seeds and the states of generators."""

import random

import numpy as np
import pytest
import torch

from poplin.accelerators.cpu import CPUAccelerator
from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.rank_zero import rank_zero_only
from poplin.seed import (
    collect_rng_states,
    isolate_rng,
    reset_seed,
    restore_rng_states,
    seed_everything,
    track_accelerator,
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")  # what seed_everything sets is given back
    monkeypatch.setenv("PL_SEED_WORKERS", "0")


def draw():
    return float(torch.rand(())), random.random(), float(np.random.rand())


def test_everything_is_seeded_and_the_seed_returned():
    assert seed_everything(42) == 42
    first = draw()
    assert seed_everything(42) == 42
    assert draw() == first
    seed_everything(43)
    assert not set(draw()) & set(first)


def test_the_environment_is_read_and_set(monkeypatch):
    import os

    assert seed_everything() == 7
    assert seed_everything(9, workers=True) == 9
    assert (os.environ["PL_GLOBAL_SEED"], os.environ["PL_SEED_WORKERS"]) == ("9", "1")
    seed_everything(9)
    assert os.environ["PL_SEED_WORKERS"] == "0"
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert seed_everything() == 0


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "many", float("nan")])
def test_a_seed_out_of_range_is_an_error_that_seeds_nothing(seed):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with pytest.raises(ArgumentValueError, match="from 0 to 4294967295"):
        seed_everything(seed)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [True, [1], {}])
def test_a_seed_that_is_no_number_is_an_error(seed):
    with pytest.raises(ArgumentTypeError, match="a seed is an integer"):
        seed_everything(seed)


@pytest.mark.parametrize(("seed", "number"), [(2**32 - 1, 2**32 - 1), ("12", 12), (3.0, 3), (np.int64(5), 5)])
def test_what_is_a_whole_number_is_a_seed(seed, number):
    assert seed_everything(seed) == number


def test_an_environment_that_holds_no_seed_is_named(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "abc")
    with pytest.raises(ArgumentValueError, match="the environment variable PL_GLOBAL_SEED is 'abc'"):
        seed_everything()


def test_a_seed_for_each_rank(monkeypatch):
    import os

    drawn = []
    for rank in range(2):
        monkeypatch.setattr(rank_zero_only, "rank", rank)
        assert seed_everything(2**32 - 1, per_rank=True, verbose=False) == 2**32 - 1
        assert os.environ["PL_GLOBAL_SEED"] == str(2**32 - 1)
        drawn.append(draw())
        reset_seed()
        assert draw() == drawn[-1], "a reset is this rank's"
    assert not set(drawn[0]) & set(drawn[1])


def test_reset_without_a_seed_does_nothing(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED")
    state = torch.get_rng_state()
    reset_seed()
    assert torch.equal(torch.get_rng_state(), state)


class OwnGenerator(CPUAccelerator):
    def __init__(self):
        self.seeds = []
        self.state = torch.tensor([1], dtype=torch.uint8)

    def seed(self, seed):
        self.seeds.append(seed)

    def rng_state(self):
        return self.state

    def set_rng_state(self, state):
        self.state = state


def test_accelerators_in_use_are_seeded_whenever_they_come():
    early = OwnGenerator()
    track_accelerator(early)
    seed_everything(11)
    late = OwnGenerator()
    track_accelerator(late)
    assert early.seeds[-1] == 11
    assert late.seeds == [11]
    del early, late
    seed_everything(12)  # those that are gone are forgotten


def test_states_are_restored_after_a_safe_load(tmp_path):
    accelerator = OwnGenerator()
    random.gauss(0, 1)  # leaves a second value behind
    np.random.randn()
    torch.save(collect_rng_states(accelerator), tmp_path / "states.pt")
    first = draw(), random.gauss(0, 1), np.random.randn()
    accelerator.state = None
    restore_rng_states(torch.load(tmp_path / "states.pt", weights_only=True), accelerator)
    assert (draw(), random.gauss(0, 1), np.random.randn()) == first
    assert accelerator.state.tolist() == [1]
    restore_rng_states(collect_rng_states(None), CPUAccelerator())


def test_isolation():
    state = collect_rng_states()
    with pytest.raises(ArgumentValueError), isolate_rng(OwnGenerator()):
        seed_everything(seed_everything(1) - 2)
    after = collect_rng_states()
    assert torch.equal(state["torch"], after["torch"])
    assert torch.equal(state["python"]["words"], after["python"]["words"])
    assert torch.equal(state["numpy"]["keys"], after["numpy"]["keys"])
