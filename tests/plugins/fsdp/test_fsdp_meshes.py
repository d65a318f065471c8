"""Meshes of two dimensions: torch takes equal ones for the same, and their process groups are their own."""

from pathlib import Path

import pytest

from poplin.testing import run_ranks


@pytest.fixture(scope="module")
def ranks():
    script = Path(__file__).parent / "meshes_script.py"
    return run_ranks(script, 4, env={"OMP_NUM_THREADS": "1"}, timeout=120)


@pytest.mark.parametrize("which", ["the first of two", "the second of two", "a later one"])
def test_fabrics_with_equal_meshes_train_and_save_whatever_the_others_do(ranks, which):
    assert max(rank[which] for rank in ranks) < 1e-6


def test_the_timeout_of_the_strategy_is_that_of_the_groups_of_its_mesh(ranks):
    first, its_peer_is_away, third, _ = (rank.get("without the last rank") for rank in ranks)
    assert first["class"] is None
    assert third["class"] is None
    assert its_peer_is_away["class"] == "CollectiveError"
    assert "after the timeout of 3 s" in its_peer_is_away["text"]  # and not when the other process ended
