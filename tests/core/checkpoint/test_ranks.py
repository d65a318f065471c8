"""All ranks or none: what happens on one rank, every rank learns, and is told whose fault it was."""

from pathlib import Path

import pytest

pytest.importorskip("poplin_ddp")

from poplin.testing.ranks import run_ranks


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(Path(__file__).with_name("ranks_script.py"), world_size=2, args=[str(folder)])


def test_objects_and_the_values_of_each_rank_come_back(seen):
    for rank in (0, 1):
        assert seen[rank]["restored"] == [True] * 4
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert seen[0]["names"] == [names, names]


@pytest.mark.parametrize(
    ("case", "culprit", "kind", "text"),
    [
        ("state_dict fails on rank 1", 1, "CheckpointError", "The state of bad can't be had: RuntimeError: no state"),
        ("unsafe on rank 1", 1, "UnsafeCheckpointError", "x (a object)"),
        ("other objects on rank 1", 1, "ArgumentValueError", "holds other objects than the one on rank 0: more"),
        ("rank 0 can't write", 0, "CheckpointError", "is a folder"),
        ("load fails on rank 1", 1, "CheckpointError", "thing could not be restored"),
        ("not there on rank 1", 1, "CheckpointNotFoundError", "There is no checkpoint at"),
        ("background failure at wait", 0, "CheckpointError", "is a folder"),
        ("background failure at the next save", 0, "CheckpointError", "is a folder"),
    ],
)
def test_one_rank_fails_and_both_raise(seen, case, culprit, kind, text):
    own, others = seen[culprit][case], seen[1 - culprit][case]
    assert own[0] == others[0] == kind
    assert text in own[1]
    assert text in others[1]
    assert f"Rank {culprit} failed in" in others[1]
    assert "Rank" not in own[1]


def test_an_argument_that_is_wrong_everywhere_is_told_as_it_is(seen):
    for rank in (0, 1):
        assert seen[rank]["wrong argument on both"][0] == "ArgumentTypeError"


def test_a_failed_save_leaves_no_file_and_rank_zeros_path_counts(seen):
    for rank in (0, 1):
        assert seen[rank]["files after failures"] == ["a.ckpt", "is_a_folder"]
        assert seen[rank]["files after one path each"] == ["a.ckpt", "from-0.ckpt", "is_a_folder"]
        assert seen[rank]["files"][-2:] == ["last.ckpt", "three.ckpt"]


def test_a_load_that_fails_on_one_rank_is_undone_on_both(seen):
    for rank in (0, 1):
        assert seen[rank]["unchanged"] == [True, 7]


def test_a_save_in_the_background_has_the_state_of_the_call(seen):
    assert seen[0]["state at the call"]
    assert seen[1]["state at the call"]


def test_another_number_of_processes_is_told_once(seen):
    (first, told), (second, silent) = (seen[rank]["three to two"] for rank in (0, 1))
    assert (first, second) == (1, 2)
    assert (
        "x was saved by 3 process(es), and there are 2 now: the states of rank(s) 2 and above are left out" in told[0]
    )
    assert silent == []
