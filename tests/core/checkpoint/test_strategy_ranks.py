"""Two ranks whose strategy keeps a state: collectives in its methods, and failures on one of them."""

from pathlib import Path

import pytest

from poplin.testing.ranks import run_ranks

KINDS = ("torch", "sharded")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strategy")
    script = Path(__file__).with_name("strategy_ranks_script.py")
    return run_ranks(script, 2, args=[str(folder)], env={"OMP_NUM_THREADS": "1"}, timeout=120)


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_as_if_it_had_never_stopped(seen, kind):
    for ranks in seen:
        assert ranks[f"{kind}: saving changes nothing"]
        assert ranks[f"{kind}: a goes on"] == [True, True, True]
        assert ranks[f"{kind}: background goes on"] == [True, True, True]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("case", "error", "text"),
    [
        ("state_dict on rank 1", "CheckpointError", "The state of the strategy Outer can't be had: state_dict()"),
        ("unsafe on rank 1", "UnsafeCheckpointError", "strategy Outer.extra (a object)"),
        ("a module on rank 1", "CheckpointError", "The state of model can't be had: RuntimeError: no extra state"),
        ("load, load_state_dict on rank 1", "CheckpointError", "load_state_dict() of Outer raised RuntimeError"),
        ("load, state_dict on rank 1", "CheckpointError", "state_dict() of Outer raised RuntimeError"),
        ("load, a module on rank 1", "CheckpointError", "model could not be restored"),
    ],
)
def test_one_rank_fails_and_both_raise(seen, kind, case, error, text):
    own, others = seen[1][f"{kind}: {case}"], seen[0][f"{kind}: {case}"]
    assert own[0] == others[0] == error
    assert text in own[1]
    assert text in others[1]
    assert "Rank 1 failed in" in others[1]
    assert "Rank" not in own[1]
    end = "Nothing was restored" if "load" in case else "Nothing was written"
    assert end in own[1]
    assert end in others[1]
    background = f"{kind}: {case}, in the background"
    if background in seen[0]:
        assert (seen[1][background], seen[0][background]) == (own, others)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_was_written_and_nothing_restored(seen, kind):
    for ranks in seen:
        assert ranks[f"{kind}: files"] == ["a", "background", "fickle"]
        for trouble in ("load_state_dict", "state_dict", "collective load_state_dict"):
            assert ranks[f"{kind}: load, {trouble}: as it was"] == [True] * 3
        assert ranks[f"{kind}: load, a module: as it was"] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_of_its_own_that_fails_is_told_as_it_is(seen, kind):
    for ranks in seen:
        outcome = ranks[f"{kind}: load, collective load_state_dict on rank 1"]
        assert outcome == ["CollectiveError", "shapes that differ"]


@pytest.mark.parametrize("kind", KINDS)
def test_rank_zeros_is_kept_and_a_strategy_that_keeps_nothing_costs_a_save_nothing(seen, kind):
    for ranks in seen:
        assert ranks[f"{kind}: rank 0's is kept"] == [0, ["only on 0", "rank"]]
        nothing, something = ranks[f"{kind}: counts"]
        assert something == [nothing[0] + 1, nothing[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_sharded_tensors_in_it_are_refused(seen, kind):
    for ranks in seen:
        error, text = ranks[f"{kind}: sharded"]
        assert error == "CheckpointError"
        assert "The state of the strategy Sharded has sharded tensors" in text
        assert "strategy Sharded.outer" in text
