"""Two ranks write and read folders: any layout to any other, all ranks or none."""

from pathlib import Path

import pytest

pytest.importorskip("poplin_ddp")

import torch

from poplin import Fabric
from poplin.testing.ranks import run_ranks

from .sharding import differing, make, reference, step, values


class PerRank:
    per_rank_state = True
    value = 10

    def state_dict(self):
        return {"value": torch.tensor(self.value)}

    def load_state_dict(self, state):
        self.value = state["value"].item()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def seen(folder):
    with Fabric(accelerator="cpu", devices=1, plugins="sharded") as fabric:
        model, optimizer = fabric.setup(*make())
        step(model, optimizer)
        fabric.save(folder / "single", {"model": model, "optimizer": optimizer, "step": 7, "mine": PerRank()})
    here = Path(__file__)
    script = here.with_name("sharded_ranks_script.py")
    return run_ranks(script, 2, args=[str(folder), str(here.parent)], env={"OMP_NUM_THREADS": "1"}, timeout=120)


def test_every_layout_loads_what_every_other_saved(seen):
    arrows = [name for name in seen[0] if "->" in name or "trains as" in name]
    assert len(arrows) == 23
    assert [{name: ranks[name] for name in arrows if ranks[name]} for ranks in seen] == [{}, {}]


@pytest.mark.parametrize("name", ["rows", "columns", "ddp", "file", "single"])
def test_one_process_loads_what_two_saved(seen, folder, name):
    with Fabric(accelerator="cpu", devices=1) as fabric:
        model, optimizer = fabric.setup(*make(3))
        state = {"model": model, "optimizer": optimizer, "step": 0}
        rest = fabric.load(folder / name, state)
        assert state["step"] == 7
        assert list(rest) == ["mine"]
        wanted = reference()
        assert differing(values(model, optimizer), wanted) == []
        assert model[3].weight is model[0].weight


@pytest.mark.parametrize(
    ("case", "culprit", "kind", "text"),
    [
        ("rank 1 can't write", 1, "CheckpointError", "No space left on device"),
        ("rank 0 can't write", 0, "CheckpointError", "No space left on device"),
        ("rank 1 can't write over", 1, "CheckpointError", "No space left on device"),
        ("a file is in the way", 0, "CheckpointError", "is a file, and the checkpoint is to be a folder"),
        ("other objects", 1, "ArgumentValueError", "holds other objects than the one on rank 0: optimizer"),
        ("unsafe on rank 0", 0, "UnsafeCheckpointError", "x (a object)"),
        ("background failure", 1, "CheckpointError", "No space left on device"),
        ("background failure at the next save", 1, "CheckpointError", "No space left on device"),
        ("corrupt for rank 1", 1, "DamagedCheckpointError", "the values of model.0.weight are corrupt"),
    ],
)
def test_one_rank_fails_and_both_raise(seen, case, culprit, kind, text):
    own, others = seen[culprit][case], seen[1 - culprit][case]
    assert own[0] == others[0] == kind
    assert text in own[1]
    assert text in others[1]
    assert f"Rank {culprit} failed in" in others[1]
    assert f"Rank {culprit} failed in" not in own[1]


def test_a_mismatch_is_told_the_same_on_both(seen):
    assert seen[0]["mismatch"] == seen[1]["mismatch"]
    assert "missing in the checkpoint (2): model.weight, model.bias" in seen[0]["mismatch"][1]


def test_failures_leave_nothing_behind(seen):
    for ranks in seen:
        assert ranks["files after failures"]
        assert ranks["files after background failures"]
        assert ranks["still there"] == {}
        assert ranks["corrupt: nothing was restored"] == []


def test_the_background(seen):
    for ranks in seen:
        assert ranks["async"] == []
        assert ranks["async twice"] == {"x": 2}


def test_states_of_odd_kinds(seen):
    for ranks in seen:
        assert ranks["odd"] == [[0, 1, 2, 3, 4], [[1, 1, 1]], 0, [0, 3], [0, 0], {"rank": 0}]
        assert ranks["whole tensors on one rank each"] == {"first": [0, 0], "second": [1, 1]}
        assert ranks["two models, one optimizer"] == [True] * 36
        kind, text = ranks["sharded tensor into a file"]
        assert kind == "ArgumentValueError"
        assert "Sharded tensors, of which this rank has a part only: mine" in text
