"""Two and four ranks, sharded in every way, against one plain process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poplin.testing import run_ranks

HERE = Path(__file__).parent
#: A difference of directions, of what is computed in bfloat16.
TOLERANCE = {"muon": 1e-3}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["two ranks", "four ranks"])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    script = HERE / "training_script.py"
    return run_ranks(script, request.param, env={"OMP_NUM_THREADS": "1"}, timeout=170)


def test_every_way_of_sharding_trains_as_one_process_does(ranks):
    assert len(ranks[0]) == (16 if len(ranks) == 2 else 10)
    far = {
        name: one["distance"]
        for rank in ranks
        for name, one in rank.items()
        if not one["distance"] <= TOLERANCE.get(name, 1e-6)
    }
    assert far == {}


def test_the_norm_before_clipping_is_that_of_one_process(ranks):
    assert {name: one["norms"] for rank in ranks for name, one in rank.items() if not one["norms"] <= 1e-6} == {}


def test_initial_values_names_and_tied_weights_are_those_of_one_process(ranks):
    assert {name: one["wrong"] for rank in ranks for name, one in rank.items() if one["wrong"]} == {}
