"""What a strategy keeps between steps is saved and restored by itself; one process. Several: test_strategy_ranks.py."""

import pytest
import torch
from torch import nn

import poplin.checkpoint.state as checkpoint_state
from poplin.checkpoint import ShardedCheckpointIO, TorchCheckpointIO, consolidate
from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointError,
    PossibleUserWarning,
    UnsafeCheckpointError,
)
from poplin.precision import Precision
from poplin.strategies import SingleDeviceStrategy


class Outer(SingleDeviceStrategy):
    """Keeps an outer momentum and a counter."""

    def __init__(self, checkpoint_io=None, **kwargs):
        super().__init__(device="cpu", checkpoint_io=checkpoint_io or TorchCheckpointIO(), precision=Scaling())
        self.momentum, self.steps, self.given = torch.zeros(3), 0, []

    def state_dict(self):
        return {"momentum": self.momentum, "steps": self.steps} if self.steps else {}

    def load_state_dict(self, state):
        self.given.append(state)
        self.momentum, self.steps = state["momentum"], state["steps"]

    def kept(self):
        return [self.steps, self.momentum.tolist()]


class Scaling(Precision):
    scale = 4.0

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]


class Other(Outer):
    pass


class Plain(SingleDeviceStrategy):
    def __init__(self):
        super().__init__(device="cpu", checkpoint_io=TorchCheckpointIO(), precision=Scaling())


def save(strategy, path, state, **kwargs):
    checkpoint_state.save(path, state, strategy=strategy, precision=strategy.precision, **kwargs)


def load(strategy, path, state=None, **kwargs):
    return checkpoint_state.load(path, state, strategy=strategy, precision=strategy.precision, **kwargs)


def after(steps, kind=Outer, **kwargs):
    strategy = kind(**kwargs)
    strategy.momentum, strategy.steps = torch.full((3,), float(steps)), steps
    return strategy


AFTER_FIVE = [5, [5.0] * 3]


@pytest.fixture
def state(trained):
    model, optimizer, _ = trained()
    return {"model": model, "optimizer": optimizer}


@pytest.fixture(params=[TorchCheckpointIO, ShardedCheckpointIO], ids=["file", "folder"])
def checkpoint_io(request):
    return request.param


def test_it_comes_back_with_an_optimizer_in_files_and_folders(state, checkpoint_io, tmp_path):
    save(after(5, checkpoint_io=checkpoint_io()), tmp_path / "a", state)
    new = Outer(checkpoint_io())
    assert load(new, tmp_path / "a", state) == {}
    assert new.kept() == AFTER_FIVE
    assert [sorted(given) for given in new.given] == [["momentum", "steps"]]
    assert new.given[0]["momentum"].device.type == "cpu"


def test_it_is_no_part_of_what_the_user_sees(state, checkpoint_io, tmp_path):
    strategy = after(5, checkpoint_io=checkpoint_io())
    save(strategy, tmp_path / "a", state)
    assert sorted(load(strategy, tmp_path / "a")) == ["model", "optimizer"]
    assert strategy.given == []


def test_the_file_says_which_class_wrote_it(state, tmp_path):
    strategy = after(5)
    save(strategy, tmp_path / "a", state)
    own = torch.load(tmp_path / "a", weights_only=True)["__poplin__"]
    assert sorted(own) == ["precision", "strategy"]
    assert own["strategy"]["class"] == f"{__name__}:Outer"
    assert own["strategy"]["state"]["steps"] == 5


def test_it_stays_out_of_loads_of_weights_alone(state, checkpoint_io, tmp_path):
    strategy, new = after(5, checkpoint_io=checkpoint_io()), Outer(checkpoint_io())
    save(strategy, tmp_path / "a", state)
    assert list(load(new, tmp_path / "a", {"model": state["model"]})) == ["optimizer"]
    save(strategy, tmp_path / "weights", dict(state["model"].state_dict()))
    checkpoint_state.load_raw(tmp_path / "weights", state["model"], strategy=new)
    assert new.given == []


def test_a_strategy_without_a_state_leaves_nothing_in_the_checkpoint(state, tmp_path):
    save(Outer(), tmp_path / "none yet", state)
    save(Plain(), tmp_path / "none ever", state)
    for name in ("none yet", "none ever"):
        assert list(torch.load(tmp_path / name, weights_only=True)["__poplin__"]) == ["precision"]
        strategy = after(5)
        load(strategy, tmp_path / name, state)  # as checkpoints from before there was such a state
        assert strategy.kept() == AFTER_FIVE
        assert strategy.given == []


def test_another_class_leaves_it_out_and_says_so_if_it_keeps_a_state_itself(state, tmp_path):
    save(after(5), tmp_path / "a", state)
    plain = Plain()
    plain.precision.scale = 1.0
    load(plain, tmp_path / "a", state)  # a warning would be an error
    assert plain.precision.scale == 4.0
    other = Other()
    with pytest.warns(PossibleUserWarning, match=rf"strategy {__name__}:Outer, and this run's strategy is .*:Other"):
        load(other, tmp_path / "a", state)
    assert other.given == []
    save(after(5, Other), tmp_path / "b", state)
    load(other, tmp_path / "b", state)
    assert other.kept() == AFTER_FIVE


def test_a_class_of_the_script_is_the_same_in_processes_that_it_spawned(state, tmp_path):
    spawned = type("Mine", (Outer,), {"__module__": "__mp_main__"})
    script = type("Mine", (Outer,), {"__module__": "__main__"})
    save(after(5, spawned), tmp_path / "a", state)
    assert torch.load(tmp_path / "a", weights_only=True)["__poplin__"]["strategy"]["class"] == "__main__:Mine"
    strategy = script()
    load(strategy, tmp_path / "a", state)
    assert strategy.kept() == AFTER_FIVE


@pytest.mark.parametrize("record", [None, 1, {}, {"class": f"{__name__}:Outer"}, {"state": {"steps": 1}}])
def test_what_is_no_record_is_no_state(state, tmp_path, record):
    strategy = Outer()
    save(strategy, tmp_path / "a", state)
    data = torch.load(tmp_path / "a", weights_only=True)
    data["__poplin__"]["strategy"] = record
    torch.save(data, tmp_path / "b")
    load(Plain(), tmp_path / "b", state)
    if isinstance(record, dict) and "class" not in record:
        with pytest.warns(PossibleUserWarning):
            load(strategy, tmp_path / "b", state)
    else:
        load(strategy, tmp_path / "b", state)
    assert strategy.given == []


def test_a_save_in_the_background_has_the_state_of_the_call(state, checkpoint_io, tmp_path):
    strategy = after(5, checkpoint_io=checkpoint_io())
    handle = checkpoint_state.save_async(tmp_path / "a", state, strategy=strategy, precision=strategy.precision)
    strategy.momentum += 1
    handle.wait()
    new = Outer(checkpoint_io())
    load(new, tmp_path / "a", state)
    assert new.kept() == AFTER_FIVE


def test_a_filter_is_for_the_users_keys(state, tmp_path):
    save(after(5), tmp_path / "a", state, filter={key: lambda name, value: True for key in state})
    new = Outer()
    load(new, tmp_path / "a", state)
    assert new.kept() == AFTER_FIVE
    with pytest.raises(ArgumentValueError, match="not in the state"):
        save(after(5), tmp_path / "b", state, filter={"__poplin__": lambda name, value: False})


def test_consolidating_keeps_it(state, tmp_path):
    save(after(5, checkpoint_io=ShardedCheckpointIO()), tmp_path / "folder", state)
    consolidate(tmp_path / "folder", tmp_path / "file")
    new = Outer()
    load(new, tmp_path / "file", state)
    assert new.kept() == AFTER_FIVE


def test_the_strategy_has_no_place_in_the_users_state(state, tmp_path):
    strategy = after(5)
    with pytest.raises(ArgumentTypeError, match=r"nested\.mine is a strategy.*leave it out"):
        save(strategy, tmp_path / "a", {**state, "nested": {"mine": strategy}})
    assert list(tmp_path.iterdir()) == []


# --- what fails


class Failing(Outer):
    def __init__(self, result=None, error=None, **kwargs):
        super().__init__(**kwargs)
        self.result, self.error = result, error

    def state_dict(self):
        if self.error is not None:
            raise self.error
        return self.result


@pytest.mark.parametrize(
    ("strategy", "kind", "match"),
    [
        (Failing(error=KeyError("x")), CheckpointError, r"state of the strategy Failing can't be had: .*KeyError: 'x'"),
        (Failing(error=CheckpointError("mine")), CheckpointError, r"strategy Failing .*CheckpointError: mine"),
        (Failing(result=[1]), CheckpointError, r"strategy Failing .*returned a list, and a dictionary is needed"),
        (Failing(result=None), CheckpointError, r"strategy Failing .*returned a NoneType"),
        (Failing(result={"x": {"y": object()}}), UnsafeCheckpointError, r"strategy Failing\.x\.y \(a object\)"),
        (Failing(result={"x": torch.ones(1, device="meta")}), ArgumentValueError, r"strategy Failing\.x"),
    ],
    ids=["raises", "raises ours", "list", "none", "unsafe", "meta"],
)
def test_a_state_that_cant_be_had_or_written_is_told_with_the_strategys_name(state, tmp_path, strategy, kind, match):
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(kind, match=rf"(?s){match}.*Nothing was written"):
        save(strategy, tmp_path / "a", state)
    assert (tmp_path / "a").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


class Picky(Outer):
    """Takes no state with more than five steps, and finds that out half way."""

    def load_state_dict(self, state):
        self.momentum = state["momentum"]
        if state["steps"] > 5:
            raise RuntimeError("too many steps")
        self.steps = state["steps"]


def test_what_it_could_not_take_is_undone_and_so_is_all_else(state, trained, tmp_path):
    save(after(7, Picky), tmp_path / "a", state)
    model, optimizer, _ = trained(seed=1)
    before = repr([model.state_dict(), optimizer.state_dict()])
    strategy = after(5, Picky)
    strategy.precision.scale = 1.0
    with pytest.raises(CheckpointError, match=r"load_state_dict\(\) of Picky raised RuntimeError: too many.*as it was"):
        load(strategy, tmp_path / "a", {"model": model, "optimizer": optimizer})
    assert strategy.kept() == AFTER_FIVE
    assert strategy.precision.scale == 1.0
    assert repr([model.state_dict(), optimizer.state_dict()]) == before


def test_it_is_as_it_was_where_another_objects_load_fails(state, trained, tmp_path):
    class Broken(nn.Module):
        def get_extra_state(self):
            return {}

        def set_extra_state(self, extra):
            raise RuntimeError("not today")

    class Stateful:
        def state_dict(self):
            return {"x": 1}

        def load_state_dict(self, given):
            raise RuntimeError("not today")

    for index, broken in enumerate((Broken(), Stateful())):
        saved = {**state, "broken": broken}
        save(after(7), tmp_path / str(index), saved)
        strategy = after(5)
        with pytest.raises(CheckpointError, match="not today"):
            load(strategy, tmp_path / str(index), saved)
        assert strategy.kept() == AFTER_FIVE


def test_nothing_is_restored_where_its_present_state_cant_be_kept(state, trained, tmp_path):
    save(after(7, Failing, result={"momentum": torch.zeros(3), "steps": 7}), tmp_path / "a", state)
    model, optimizer, _ = trained(seed=1)
    before = repr([model.state_dict(), optimizer.state_dict()])
    strategy = Failing(error=RuntimeError("no state now"))
    strategy.precision.scale = 1.0
    with pytest.raises(CheckpointError, match=r"state_dict\(\) of Failing raised RuntimeError: no state now"):
        load(strategy, tmp_path / "a", {"model": model, "optimizer": optimizer})
    assert strategy.given == []
    assert strategy.precision.scale == 1.0
    assert repr([model.state_dict(), optimizer.state_dict()]) == before
