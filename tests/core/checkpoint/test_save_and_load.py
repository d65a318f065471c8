"""What goes into a checkpoint comes back: objects in place, plain values into the very dictionaries passed."""

import argparse
import types
import warnings
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointError,
    CheckpointMismatchError,
    PossibleUserWarning,
    UnsafeCheckpointError,
)
from poplin.strategies import parameter_names


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


def test_model_optimizer_scheduler_and_plain_values_come_back(saver, trained, tmp_path):
    model, optimizer, scheduler = trained()
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 7, "best": {"loss": 0.5}}
    saver.save(tmp_path / "a.ckpt", state)

    other, other_optimizer, other_scheduler = trained(seed=1)
    best = {"loss": 9.0, "old": True}
    new = {"model": other, "optimizer": other_optimizer, "scheduler": other_scheduler, "step": 0, "best": best}
    assert saver.load(tmp_path / "a.ckpt", new) == {}
    assert_equal(model.state_dict(), other.state_dict())
    assert_equal(optimizer.state_dict(), other_optimizer.state_dict())
    assert_equal(scheduler.state_dict(), other_scheduler.state_dict())
    assert new["step"] == 7
    assert new["model"] is other
    assert new["best"] is best
    assert best == {"loss": 0.5}


def test_resuming_equals_the_uninterrupted_run_bitwise(saver, tmp_path):
    def begin():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def step(model, optimizer, scheduler):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        scheduler.step()

    class Rng:
        def state_dict(self):
            return {"torch": torch.get_rng_state()}

        def load_state_dict(self, state):
            torch.set_rng_state(state["torch"])

    straight = begin()
    for _ in range(10):
        step(*straight)

    first = begin()
    for _ in range(5):
        step(*first)
    names = ("model", "optimizer", "scheduler")
    saver.save(tmp_path / "a.ckpt", {**dict(zip(names, first, strict=True)), "rng": Rng()})
    second = begin()
    torch.rand(100)
    saver.load(tmp_path / "a.ckpt", {**dict(zip(names, second, strict=True)), "rng": Rng()})
    for _ in range(5):
        step(*second)
    for one, other in zip(straight, second, strict=True):
        assert_equal(one.state_dict(), other.state_dict())


def test_plain_torch_reads_the_file_safely_and_finds_the_users_keys_and_parameter_names(saver, trained, tmp_path):
    model, optimizer, _ = trained()
    saver.save(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer, "step": 1})
    data = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert list(data) == ["model", "optimizer", "step"]
    assert list(data["model"]) == list(model.state_dict())
    assert list(data["optimizer"]["state"]) == [name for name, _ in model.named_parameters()]
    assert data["optimizer"]["param_groups"][0]["params"] == [name for name, _ in model.named_parameters()]


def test_objects_are_found_wherever_they_stand(saver, trained, tmp_path):
    @dataclass
    class Inner:
        model: nn.Module
        epoch: int

    Pair = namedtuple("Pair", ["optimizer", "count"])

    def state(seed, value):
        model, optimizer, scheduler = trained(seed)
        return {
            "models": {"g": model, "value": value},
            "list": [nn.Linear(2, 2), value],
            "inner": Inner(nn.Linear(1, 1), value),
            "namespace": types.SimpleNamespace(scheduler=scheduler, value=value),
            "arguments": argparse.Namespace(lr=value),
            "pair": Pair(optimizer, value),
        }

    saved, new = state(0, 5), state(1, 0)
    with pytest.warns(PossibleUserWarning, match="pair"):
        saver.save(tmp_path / "a.ckpt", saved)
    inner, models = new["inner"], new["models"]
    assert saver.load(tmp_path / "a.ckpt", new) == {}
    assert_equal(new["models"]["g"].state_dict(), saved["models"]["g"].state_dict())
    assert_equal(new["list"][0].state_dict(), saved["list"][0].state_dict())
    assert_equal(new["inner"].model.state_dict(), saved["inner"].model.state_dict())
    assert_equal(new["pair"].optimizer.state_dict(), saved["pair"].optimizer.state_dict())
    assert new["inner"] is inner
    assert new["models"] is models
    values = (
        models["value"],
        new["list"][1],
        inner.epoch,
        new["namespace"].value,
        new["arguments"].lr,
        new["pair"].count,
    )
    assert values == (5,) * 6
    assert type(new["pair"]) is Pair


def test_what_was_not_asked_for_is_returned(saver, trained, tmp_path):
    model, optimizer, _ = trained()
    saver.save(
        tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer, "n": {"m": nn.Linear(1, 1), "x": 1}, "y": 2}
    )
    rest = saver.load(tmp_path / "a.ckpt", {"model": trained()[0], "n": {"m": nn.Linear(1, 1)}})
    assert sorted(rest) == ["n", "optimizer", "y"]
    assert rest["n"] == {"x": 1}
    everything = saver.load(tmp_path / "a.ckpt")
    assert sorted(everything) == ["model", "n", "optimizer", "y"]
    assert saver.load(tmp_path / "a.ckpt", {}).keys() == everything.keys()


def test_names_are_the_users_whatever_wrappers_lie_between(saver, tmp_path):
    def plain():
        return nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "module": nn.Linear(2, 2)})

    wrapped = plain()
    wrapped["a"][0] = torch.compile(checkpoint_wrapper(wrapped["a"][0]), backend="eager")
    wrapped["module"] = nn.DataParallel(wrapped["module"])
    whole = torch.compile(wrapped, backend="eager")
    reference = plain()
    optimizer = torch.optim.AdamW(whole.parameters())
    wrapped["a"](torch.randn(4, 2)).sum().backward()
    optimizer.step()
    saver.save(tmp_path / "a.ckpt", {"model": whole, "optimizer": optimizer})
    data = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert list(data["model"]) == list(reference.state_dict())
    names = [name for name, _ in reference.named_parameters()]
    assert data["optimizer"]["param_groups"][0]["params"] == names
    assert list(parameter_names({"": whole}).values()) == names

    other = torch.optim.AdamW(reference.parameters())
    saver.load(tmp_path / "a.ckpt", {"model": reference, "optimizer": other})  # without any wrapper
    assert_equal(dict(reference.state_dict()), dict(data["model"]))
    again = plain()
    again["a"] = torch.compile(again["a"], backend="eager")  # wrapped in another way
    saver.load(tmp_path / "a.ckpt", {"model": again, "optimizer": torch.optim.AdamW(again.parameters())})
    assert torch.equal(again["a"]._orig_mod[0].weight, reference["a"][0].weight)


def test_one_optimizer_over_several_modules_with_equal_names(saver, tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        models = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 2)}
        optimizer = torch.optim.SGD([p for m in models.values() for p in m.parameters()], lr=0.1, momentum=0.9)
        sum(m(torch.randn(3, 2)).sum() for m in models.values()).backward()
        optimizer.step()
        return {"models": models, "optimizer": optimizer}

    saved, new = make(0), make(1)
    saver.save(tmp_path / "a.ckpt", saved)
    names = list(torch.load(tmp_path / "a.ckpt", weights_only=True)["optimizer"]["state"])
    assert names == ["models.g.weight", "models.g.bias", "models.d.weight", "models.d.bias"]
    saver.load(tmp_path / "a.ckpt", new)
    assert_equal(saved["optimizer"].state_dict(), new["optimizer"].state_dict())


def test_optimizer_over_loose_parameters_and_groups_in_another_order(saver, tmp_path):
    def make(seed, reverse=False):
        torch.manual_seed(seed)
        model, loose = nn.Linear(2, 2), nn.Parameter(torch.randn(3))
        groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias, loose], "lr": 0.2}]
        optimizer = torch.optim.AdamW(groups[::-1] if reverse else groups)
        (model(torch.randn(3, 2)).sum() + loose.sum()).backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = make(0)
    saver.save(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer})
    other, other_optimizer = make(1)
    saver.load(tmp_path / "a.ckpt", {"model": other, "optimizer": other_optimizer})
    assert_equal(optimizer.state_dict(), other_optimizer.state_dict())


def test_tied_weights_and_views_are_saved_once_and_without_the_rest_of_their_storage(saver, tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(64, 64, bias=False), "b": nn.Linear(64, 64, bias=False)})
    model["b"].weight = model["a"].weight
    base = torch.arange(1_000_000.0)
    state = {
        "model": model,
        "view": base[10:20],
        "same": base[10:20],
        "columns": base.view(1000, 1000)[:, 3],
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "expanded": torch.ones(1).expand(1000),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3, dtype=torch.int8),
        "conj": torch.tensor([1 + 2j]).conj(),
        "bits": base[:4].view(torch.int32),
    }
    saver.save(tmp_path / "a.ckpt", state)
    assert (tmp_path / "a.ckpt").stat().st_size < 64 * 64 * 4 + 40_000
    data = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert data["model"]["a.weight"].data_ptr() == data["model"]["b.weight"].data_ptr()
    assert data["view"].data_ptr() == data["same"].data_ptr()
    for key in list(state)[1:]:
        assert torch.equal(data[key], state[key]), key
    assert base.untyped_storage().nbytes() == 4_000_000  # the user's own is as it was


def test_plain_values_of_every_kind(saver, tmp_path):
    class AttributeDict(dict):
        __getattr__ = dict.__getitem__

    state = {
        "none": None,
        "huge": 2**2000,
        "negative": -(2**64),
        "float": float("inf"),
        "complex": 1 + 2j,
        "bytes": b"\x00\xff",
        "text": "ünïcödé \U0001f333 \n",
        "tuple": (1, (2, [3])),
        "set": {1, 2},
        "dtype": torch.bfloat16,
        "size": torch.Size([1, 2]),
        "device": torch.device("cpu"),
        "numpy": numpy.float32(0.5),
        "numpy_int": numpy.int64(3),
        "numpy_bool": numpy.bool_(True),
        "attributes": AttributeDict(a=1),
        "default": defaultdict(list, {"a": [1]}),
        "counter": Counter("aab"),
        "ordered": OrderedDict(b=1, a=2),
        3: "a key that is a number",
        ("a", 1): "a key that is a tuple",
        "sparse": torch.eye(3).to_sparse(),
        "ключ.with.dots": {"a.b": 1},
    }
    saver.save(tmp_path / "a.ckpt", state)
    data = saver.load(tmp_path / "a.ckpt")
    for key, value in state.items():
        if key == "sparse":
            assert torch.equal(data[key].to_dense(), value.to_dense())
        else:
            assert data[key] == value, key
    assert type(data["attributes"]) is dict
    new = {"attributes": AttributeDict(a=0), "default": defaultdict(list)}
    attributes = new["attributes"]
    saver.load(tmp_path / "a.ckpt", new)
    assert new["attributes"] is attributes
    assert attributes.a == 1
    assert new["default"]["missing"] == []


class Colour(__import__("enum").Enum):
    RED = 1


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Custom(), "Custom"),
        (Colour.RED, r"\.value"),
        (numpy.ones(3), "tolist"),
        (__import__("pathlib").Path("x"), r"str\(path\)"),
        (lambda: 0, "lambda"),
        (2**3000, "string"),
        (frozenset({1}), "frozenset"),
        ({"deep": [0, {Colour.RED: 1}]}, r"deep\.1"),
        (type("SubTensor", (torch.Tensor,), {})([1.0]), "SubTensor"),
    ],
    ids=str,
)
def test_what_a_safe_load_would_refuse_is_refused_when_saved_by_key(saver, tmp_path, value, hint):
    (tmp_path / "a.ckpt").write_bytes(b"before")
    with pytest.raises(UnsafeCheckpointError, match=rf"nested\.bad.*{hint}|nested\.bad\.{hint}"):
        saver.save(tmp_path / "a.ckpt", {"model": nn.Linear(1, 1), "nested": {"bad": value, "good": 1}})
    assert (tmp_path / "a.ckpt").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_an_allowed_class_may_be_saved(saver, tmp_path):
    with torch.serialization.safe_globals([Custom]):
        saver.save(tmp_path / "a.ckpt", {"value": Custom()})
        assert isinstance(saver.load(tmp_path / "a.ckpt")["value"], Custom)
    with pytest.raises(UnsafeCheckpointError, match=r"Custom.*weights_only=False"):
        saver.load(tmp_path / "a.ckpt")
    assert isinstance(saver.load(tmp_path / "a.ckpt", weights_only=False)["value"], Custom)


def test_meta_tensors_and_states_that_contain_themselves_are_refused(saver, tmp_path):
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(ArgumentValueError, match=r"meta device.*model\.weight; model\.bias"):
        saver.save(tmp_path / "a.ckpt", {"model": model})
    loop = {}
    loop["self"] = loop
    with pytest.raises(ArgumentValueError, match="contains itself"):
        saver.save(tmp_path / "a.ckpt", loop)
    with pytest.raises(ArgumentValueError, match="__poplin__"):
        saver.save(tmp_path / "a.ckpt", {"__poplin__": 1})
    assert list(tmp_path.iterdir()) == []


def test_filters_keep_what_they_are_true_for(saver, trained, tmp_path):
    model, optimizer, _ = trained()
    saver.save(
        tmp_path / "a.ckpt",
        {"models": {"g": model}, "optimizer": optimizer, "numbers": {"a": 1, "b": 2}},
        filter={
            "models.g": lambda name, value: name.endswith("weight"),
            "optimizer": lambda name, value: name == "param_groups",
            "numbers": lambda name, value: value > 1,
        },
    )
    data = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert list(data["models"]["g"]) == ["0.weight", "1.weight", "2.weight"]
    assert list(data["optimizer"]) == ["param_groups"]
    assert data["numbers"] == {"b": 2}


@pytest.mark.parametrize(
    ("filter", "error", "match"),
    [
        ([1], TypeError, "dictionary"),
        ({"modle": lambda n, v: True}, ValueError, "Did you mean 'model'"),
        ({"model": "weight"}, TypeError, "function"),
        ({"model": lambda name: True}, ArgumentTypeError, "'model'.*two arguments"),
        ({"models": nn.Linear(1, 1).state_dict()}, ArgumentValueError, "Did you mean"),
        ({"step": lambda n, v: True}, TypeError, "nothing to choose from"),
    ],
)
def test_wrong_filters_are_refused_before_anything_is_written(saver, tmp_path, filter, error, match):
    with pytest.raises(error, match=match):
        saver.save(tmp_path / "sub" / "a.ckpt", {"model": nn.Linear(1, 1), "step": 1}, filter=filter)
    assert list(tmp_path.iterdir()) == []


def test_a_filter_that_raises_and_one_that_leaves_nothing(saver, tmp_path):
    def broken(name, value):
        raise KeyError(name)

    with pytest.raises(KeyError):
        saver.save(tmp_path / "a.ckpt", {"model": nn.Linear(1, 1)}, filter={"model": broken})
    assert list(tmp_path.iterdir()) == []
    with pytest.warns(PossibleUserWarning, match="leaves nothing of 'model'"):
        saver.save(tmp_path / "a.ckpt", {"model": nn.Linear(1, 1)}, filter={"model": lambda name, value: None})


@pytest.mark.parametrize("state", [None, [1], nn.Linear(1, 1), "x"])
def test_a_state_that_is_no_dictionary(saver, tmp_path, state):
    with pytest.raises(ArgumentTypeError, match="dictionary"):
        saver.save(tmp_path / "a.ckpt", state)
    if state is not None:
        with pytest.raises(ArgumentTypeError, match="dictionary"):
            saver.load(tmp_path / "a.ckpt", state)


def test_saving_does_not_disturb_the_random_numbers_or_warn(saver, trained, tmp_path):
    model, optimizer, scheduler = trained()
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saver.save(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer, "scheduler": scheduler})
        saver.load(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer, "scheduler": scheduler})
    assert torch.equal(before, torch.get_rng_state())


def test_an_object_whose_state_dict_raises_is_named(saver, tmp_path):
    class Broken:
        def state_dict(self):
            raise RuntimeError("no state today")

        def load_state_dict(self, state):
            pass

    with pytest.raises(CheckpointError, match=r"deep\.broken.*no state today"):
        saver.save(tmp_path / "a.ckpt", {"deep": {"broken": Broken()}})
    assert list(tmp_path.iterdir()) == []


def test_the_state_of_the_precision_travels_with_an_optimizer(saver, trained, tmp_path):
    class Scaling(type(saver.strategy.precision)):
        scale = 4.0

        def state_dict(self):
            return {"scale": self.scale}

        def load_state_dict(self, state):
            self.scale = state["scale"]

    precision = saver.strategy.precision = Scaling()
    model, optimizer, _ = trained()
    saver.save(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer})
    precision.scale = 1.0
    assert saver.load(tmp_path / "a.ckpt", {"model": model}).keys() == {"optimizer"}
    assert precision.scale == 1.0
    saver.load(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer})
    assert precision.scale == 4.0


def test_load_raw_reads_a_plain_state_dict(saver, trained, tmp_path):
    model, optimizer, _ = trained()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    other, other_optimizer, _ = trained(seed=1)
    saver.load_raw(tmp_path / "model.pt", other)
    saver.load_raw(tmp_path / "optimizer.pt", other_optimizer)
    assert_equal(model.state_dict(), other.state_dict())
    assert_equal(optimizer.state_dict(), other_optimizer.state_dict())
    saver.save(tmp_path / "a.ckpt", {"model": model, "step": 1})
    with pytest.raises(CheckpointMismatchError, match=r"several things.*'model'"):
        saver.load_raw(tmp_path / "a.ckpt", other)
    with pytest.raises(ArgumentTypeError, match="dictionary"):
        saver.load_raw(tmp_path / "a.ckpt", {"model": other})


def test_nested_tensors_and_states_nested_too_deeply(saver, tmp_path):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    saver.save(tmp_path / "a.ckpt", {"nested": nested})
    loaded = saver.load(tmp_path / "a.ckpt")["nested"]
    assert [part.tolist() for part in loaded.unbind()] == [[1.0] * 2, [1.0] * 3]
    deep = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ArgumentValueError, match="nested too deeply"):
        saver.save(tmp_path / "b.ckpt", {"deep": deep})
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]
