"""Nothing is restored unless everything can be, and the message lists every name."""

import copy

import pytest
import torch
from torch import nn

from poplin.errors import CheckpointError, CheckpointMismatchError, PossibleUserWarning


def snapshot(*objects):
    return copy.deepcopy([obj.state_dict() for obj in objects])


def unchanged(before, *objects):
    for old, obj in zip(before, objects, strict=True):
        assert repr(old) == repr(obj.state_dict())


def test_everything_that_does_not_fit_is_in_one_message_and_nothing_is_restored(saver, trained, tmp_path):
    model, optimizer, _ = trained()
    saver.save(tmp_path / "a.ckpt", {"first": nn.Linear(2, 2), "model": model, "optimizer": optimizer, "step": 3})
    first = nn.Linear(2, 2)
    other, other_optimizer, _ = trained(seed=1, width=5)
    state = {"first": first, "model": other, "optimizer": other_optimizer, "step": 0, "stpe": 1}
    before = snapshot(first, other, other_optimizer)
    with pytest.raises(CheckpointMismatchError) as info:
        saver.load(tmp_path / "a.ckpt", state)
    message = str(info.value)
    assert "missing in the checkpoint (1): stpe" in message
    assert "'stpe' may be meant to be 'step'" in message
    assert "model.0.weight: (4, 3) in the checkpoint, (5, 3) here" in message
    assert "optimizer.0.weight.exp_avg: (4, 3) in the checkpoint" in message
    assert "nothing was restored" in message
    unchanged(before, first, other, other_optimizer)
    assert state["step"] == 0
    with pytest.raises(CheckpointMismatchError, match="of another shape"):
        saver.load(tmp_path / "a.ckpt", state, strict=False)
    unchanged(before, first, other, other_optimizer)


def test_missing_and_unexpected_names(saver, tmp_path):
    saver.save(tmp_path / "a.ckpt", {"model": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
    model = nn.ModuleDict({"0": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    before = snapshot(model)
    with pytest.raises(CheckpointMismatchError) as info:
        saver.load(tmp_path / "a.ckpt", {"model": model})
    assert "missing in the checkpoint (2): model.head.weight, model.head.bias" in str(info.value)
    assert "unexpected in the checkpoint (2): model.1.weight, model.1.bias" in str(info.value)
    assert "strict=False" in str(info.value)
    unchanged(before, model)
    with pytest.warns(PossibleUserWarning, match=r"only in part:\n.*model\.head\.weight"):
        saver.load(tmp_path / "a.ckpt", {"model": model}, strict=False)
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["model"]
    assert torch.equal(model["0"].weight, saved["0.weight"])


def test_a_misspelt_key_loads_nothing_and_is_told(saver, tmp_path):
    saver.save(tmp_path / "a.ckpt", {"model": nn.Linear(2, 2)})
    model = nn.Linear(2, 2)
    before = snapshot(model)
    with pytest.raises(KeyError, match="'modle' may be meant to be 'model'"):
        saver.load(tmp_path / "a.ckpt", {"modle": model})
    with pytest.warns(PossibleUserWarning, match="'modle' may be meant to be 'model'"):
        rest = saver.load(tmp_path / "a.ckpt", {"modle": model}, strict=False)
    assert list(rest) == ["model"]
    unchanged(before, model)


def test_another_kind_of_optimizer_number_or_thing(saver, trained, tmp_path):
    model, optimizer, _ = trained()
    saver.save(
        tmp_path / "a.ckpt",
        {"model": model, "optimizer": optimizer, "step": 1, "complex": {"weight": torch.ones(1, 1) * 1j}},
    )
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(CheckpointMismatchError, match="another kind of optimizer, with .*betas.*where SGD has"):
        saver.load(tmp_path / "a.ckpt", {"model": model, "optimizer": sgd})
    with pytest.raises(CheckpointMismatchError, match=r"step: a int in the checkpoint, a state dict is needed"):
        saver.load(tmp_path / "a.ckpt", {"step": model})
    with pytest.raises(CheckpointMismatchError, match="no state of an optimizer"):
        saver.load(tmp_path / "a.ckpt", {"model": optimizer})
    with pytest.raises(CheckpointMismatchError, match=r"torch\.complex64 in the checkpoint would lose"):
        saver.load(tmp_path / "a.ckpt", {"complex": nn.Linear(1, 1, bias=False)})
    smaller = torch.optim.AdamW(list(model.parameters())[:2])
    with pytest.raises(CheckpointMismatchError, match=r"unexpected.*optimizer\.1\.weight"):
        saver.load(tmp_path / "a.ckpt", {"model": model, "optimizer": smaller})
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(CheckpointMismatchError, match="on the meta device here"):
        saver.load(tmp_path / "a.ckpt", {"model": meta})


def test_lists_of_another_length(saver, tmp_path):
    saver.save(tmp_path / "a.ckpt", {"models": [nn.Linear(1, 1), nn.Linear(1, 1)]})
    with pytest.raises(CheckpointMismatchError, match=r"missing .*models\.2"):
        saver.load(tmp_path / "a.ckpt", {"models": [nn.Linear(1, 1) for _ in range(3)]})
    with pytest.raises(CheckpointMismatchError, match=r"unexpected .*models\.1"):
        saver.load(tmp_path / "a.ckpt", {"models": [nn.Linear(1, 1)]})


class Picky:
    """Its loading fails half way."""

    def __init__(self, fails):
        self.values, self.fails = {"a": 1, "b": 2}, fails

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values["a"] = state["a"]
        if self.fails and state["b"] == 20:
            raise RuntimeError("b is not for me")
        self.values["b"] = state["b"]


class PickyModule(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.fails = fails

    def get_extra_state(self):
        return {"x": 1}

    def set_extra_state(self, state):
        if self.fails:
            raise RuntimeError("not this one")


@pytest.mark.parametrize("kind", ["object", "module"])
def test_what_fails_half_way_is_undone(saver, trained, tmp_path, kind):
    model, optimizer, scheduler = trained()
    good, last = Picky(fails=False), Picky(False) if kind == "object" else PickyModule()
    good.values = {"a": 10, "b": 20}
    if kind == "object":
        last.values = {"a": 10, "b": 20}
    saver.save(
        tmp_path / "a.ckpt",
        {"model": model, "optimizer": optimizer, "scheduler": scheduler, "good": good, "last": last, "step": 1},
    )
    other, other_optimizer, other_scheduler = trained(seed=1)
    other_good, other_last = Picky(fails=False), Picky(True) if kind == "object" else PickyModule(fails=True)
    objects = (other, other_optimizer, other_scheduler, other_good, other_last)
    before = snapshot(*objects)
    state = dict(zip(("model", "optimizer", "scheduler", "good", "last"), objects, strict=True)) | {"step": 0}
    with pytest.raises(CheckpointError, match=r"last could not be restored.*Nothing was restored") as info:
        saver.load(tmp_path / "a.ckpt", state)
    assert not getattr(info.value, "__notes__", []) or kind == "module"
    unchanged(before, *objects)
    assert state["step"] == 0
    other_optimizer.zero_grad()
    other(torch.randn(5, 3)).sum().backward()
    other_optimizer.step()  # it still works


def test_an_optimizer_keeps_its_identity_through_a_failed_load(saver, trained, tmp_path):
    model, optimizer, scheduler = trained()
    saver.save(tmp_path / "a.ckpt", {"optimizer": optimizer, "x": Picky(False), "model": model})
    broken = Picky(True)
    saver.save(tmp_path / "b.ckpt", {"optimizer": optimizer, "x": {"a": 1, "b": 20}, "model": model})
    groups = optimizer.param_groups
    with pytest.raises(CheckpointError):
        saver.load(tmp_path / "b.ckpt", {"optimizer": optimizer, "x": broken, "model": model})
    assert optimizer.param_groups is groups
    assert scheduler.optimizer is optimizer


def test_a_module_that_translates_old_names_itself(saver, tmp_path):
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.new = nn.Linear(2, 2)

        def _load_from_state_dict(self, state_dict, prefix, *args):
            for name in ("weight", "bias"):
                if f"{prefix}old.{name}" in state_dict:
                    state_dict[f"{prefix}new.{name}"] = state_dict.pop(f"{prefix}old.{name}")
            super()._load_from_state_dict(state_dict, prefix, *args)

    old = nn.ModuleDict({"old": nn.Linear(2, 2)})
    saver.save(tmp_path / "a.ckpt", {"model": nn.Sequential(old)})
    model = nn.Sequential(Renamed())
    saver.load(tmp_path / "a.ckpt", {"model": model})
    assert torch.equal(model[0].new.weight, old["old"].weight)
    saver.save(tmp_path / "b.ckpt", {"model": nn.Sequential(nn.Linear(3, 3))})
    before = snapshot(model)
    with pytest.raises(CheckpointError):
        saver.load(tmp_path / "b.ckpt", {"model": model})
    unchanged(before, model)


def test_lazy_modules_take_their_shape_from_the_checkpoint(saver, tmp_path):
    saver.save(tmp_path / "a.ckpt", {"model": nn.Sequential(nn.Linear(3, 4))})
    model = nn.Sequential(nn.LazyLinear(4))
    saver.load(tmp_path / "a.ckpt", {"model": model})
    assert model[0].weight.shape == (4, 3)


def test_states_of_ranks_when_their_number_has_changed(saver, tmp_path):
    class PerRank:
        per_rank_state = True
        value = 1

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    saver.save(tmp_path / "a.ckpt", {"x": PerRank()})
    assert torch.load(tmp_path / "a.ckpt", weights_only=True) == {"x": {"__per_rank__": [{"value": 1}]}}
    saver.save(tmp_path / "b.ckpt", {"x": {"__per_rank__": [{"value": 5}, {"value": 6}]}})
    one = PerRank()
    with pytest.warns(PossibleUserWarning, match=r"x was saved by 2 process\(es\), and there are 1 now"):
        saver.load(tmp_path / "b.ckpt", {"x": one})
    assert one.value == 5

    class Dividing(PerRank):
        def load_per_rank_states(self, states, rank, world_size):
            self.value = sum(state["value"] for state in states)

    dividing = Dividing()
    with pytest.warns(PossibleUserWarning, match="goes on from"):
        saver.load(tmp_path / "b.ckpt", {"x": dividing})
    assert dividing.value == 11
