"""What stands in the files, read back with the real library; hostile and damaged ones."""

import json
import os
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

from poplin import Fabric
from poplin.checkpoint import locate, safetensors_metadata
from poplin.errors import ArgumentTypeError, CheckpointError, DamagedCheckpointError, PossibleUserWarning
from poplin.strategies import SingleDeviceStrategy

pytestmark = pytest.mark.extras


@pytest.fixture
def io():
    from poplin_safetensors.checkpoint import SafetensorsCheckpointIO

    return SafetensorsCheckpointIO()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_the_library_reads_the_weights_under_their_names_and_tied_ones_are_written_once(io, tmp_path):
    from safetensors.torch import load_file

    model, path = Tied(), tmp_path / "tied.safetensors"
    fabric = Fabric(accelerator="cpu", devices=1, plugins=io)
    model = fabric.setup(model)
    fabric.save(path, {"model": model, "step": 3})
    found = load_file(path)
    assert list(found) == ["model.embedding.weight"]
    assert torch.equal(found["model.embedding.weight"], model.embedding.weight)
    metadata = safetensors_metadata(locate(path))
    assert metadata["model.head.weight"] == "model.embedding.weight"  # as safetensors.torch.save_model says it
    state = io.load_checkpoint(path)
    assert state["model"]["head.weight"] is state["model"]["embedding.weight"]
    other = fabric.setup(Tied())
    rest = fabric.load(path, {"model": other})
    assert torch.equal(other.head.weight, model.head.weight)
    assert rest["step"] == 3
    fabric.close()


def test_any_fabric_reads_the_file_and_a_filter_leaves_names_out(io, tmp_path):
    path = tmp_path / "filtered.safetensors"
    with Fabric(accelerator="cpu", devices=1, plugins="safetensors") as fabric:
        model = fabric.setup(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
        fabric.save(path, {"model": model, "epoch": 1}, filter={"model": lambda name, value: name.startswith("1.")})
    with Fabric(accelerator="cpu", devices=1) as fabric:  # its own checkpoint IO is torch's
        other = fabric.setup(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
        first = other[0].weight.clone()
        with pytest.warns(PossibleUserWarning, match="model.0.weight"):
            fabric.load(path, state := {"model": other, "epoch": 0}, strict=False)
        assert state["epoch"] == 1
        assert torch.equal(other[1].weight, model[1].weight)
        assert torch.equal(other[0].weight, first)
        assert "safetensors" in str(fabric.explain())


def test_what_a_strategy_keeps_comes_back_from_it(io, tmp_path):
    class Outer(SingleDeviceStrategy):
        momentum = torch.zeros(2)

        def state_dict(self):
            return {"momentum": self.momentum, "steps": 3}

        def load_state_dict(self, state):
            self.momentum, self.steps = state["momentum"], state["steps"]

    def run():
        strategy = Outer(device="cpu")
        fabric = Fabric(strategy=strategy, plugins=io)
        model = nn.Linear(2, 2)
        return fabric, strategy, fabric.setup(model, torch.optim.SGD(model.parameters()))

    fabric, strategy, (model, optimizer) = run()
    strategy.momentum = torch.tensor([1.0, 2.0])
    fabric.save(tmp_path / "a.safetensors", {"model": model, "optimizer": optimizer})
    fabric.close()
    fabric, strategy, (model, optimizer) = run()
    assert fabric.load(tmp_path / "a.safetensors", {"model": model, "optimizer": optimizer}) == {}
    assert (strategy.momentum.tolist(), strategy.steps) == ([1.0, 2.0], 3)
    fabric.close()


def test_a_file_of_somebody_else_is_a_flat_state_dict(io, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "plain.safetensors"
    save_file({"a.weight": torch.ones(2), "b": torch.zeros(0, 3)}, path)
    assert not io.recognises(path)
    found = io.load_checkpoint(path, map_location="meta")
    assert {name: (tuple(value.shape), value.device.type) for name, value in found.items()} == {
        "a.weight": ((2,), "meta"),
        "b": ((0, 3), "meta"),
    }


def test_values_that_are_no_tensors_come_back_as_what_they_were(io, tmp_path):
    path = tmp_path / "values.safetensors"
    shared = torch.arange(4.0)
    state = {
        "plain": [1, -2.5, True, None, 'ü\n"', float("inf"), -0.0, 10**30, 1e-320],
        "tuple": (1, (2, [3])),
        "sets": [{1, 2}, frozenset({"a"})],
        "bytes": b"\x00\xff",
        "complex": complex(1, -0.0),
        "keys": {0: "zero", ("a", 1): "tuple", None: "none", 1.5: "float", True: "true"},
        "ordered": OrderedDict(b=1, a=2),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "a": {"b": torch.ones(1)},
        "a.b": torch.zeros(1),
        "__metadata__": torch.ones(2),
        "": torch.ones(3),
        "same": [shared, shared, shared[1:], shared.view(2, 2)],
        "complex_tensor": torch.tensor([1 + 2j]).conj(),
        "float8": torch.ones(2).to(torch.float8_e4m3fn),
        "empty": {},
    }
    io.save_checkpoint(state, path)
    found = io.load_checkpoint(path, weights_only=False)
    assert set(found) == set(state)
    for key in ("plain", "tuple", "sets", "bytes", "complex", "keys", "ordered", "size", "dtype", "empty"):
        assert found[key] == state[key], key
        assert type(found[key]) is type(state[key]), key
    assert [type(one) for one in found["plain"]] == [type(one) for one in state["plain"]]
    assert list(found["ordered"]) == ["b", "a"]
    assert (found["a"]["b"].item(), found["a.b"].item(), len(found["__metadata__"]), len(found[""])) == (1, 0, 2, 3)
    assert found["same"][0] is found["same"][1]
    assert torch.equal(found["same"][2], shared[1:])
    assert torch.equal(found["same"][3], shared.view(2, 2))
    assert found["complex_tensor"].tolist() == [1 - 2j]
    assert found["float8"].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"a": {"b": object()}}, r"a\.b is a builtins\.object"),
        ({"a": nn.Linear(1, 1)}, "a is a torch"),
        ({"m": {"w": torch.ones(2, device="meta")}}, r"m\.w is on the meta device"),
        ({"m": {"w": torch.eye(2).to_sparse()}}, r"m\.w has the layout"),
        ({"m": {"w": torch.ones(2, dtype=torch.complex128)}}, "complex128"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_by_its_key_and_nothing_is_touched(io, tmp_path, state, says):
    path = tmp_path / "new" / "refused.safetensors"
    with pytest.raises(CheckpointError, match=says):
        io.save_checkpoint(state, path)
    assert os.listdir(tmp_path) == []


def test_a_dictionary_that_contains_itself_is_refused(io, tmp_path):
    state = {"a": {}}
    state["a"]["again"] = state
    with pytest.raises(CheckpointError, match="contains itself"):
        io.save_checkpoint(state, tmp_path / "x")


def test_one_flipped_bit_is_found_and_the_tensor_is_named(io, tmp_path):
    path = tmp_path / "flipped.safetensors"
    io.save_checkpoint({"model": {"first": torch.ones(4), "second": torch.ones(4)}}, path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"model\.second"):
        io.load_checkpoint(path)


def test_hostile_headers_execute_nothing_and_are_damaged_checkpoints(io, tmp_path):
    from safetensors.torch import save_file

    class Touch:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    deep = json.dumps({"version": 1, "tree": 0})[:-2] + '{"l":[' * 3000 + "]}" * 3000 + "}"
    hostile = [
        {"poplin.tree": "os.system('x')"},
        {"poplin.tree": '{"version":1,"tree":{"dtype":"load"}}'},
        {"poplin.tree": '{"version":1,"tree":{"t":"absent"}}'},
        {"poplin.tree": '{"version":99,"tree":{"d":[]}}'},
        {"poplin.tree": '{"version":1,"tree":{"d":[[{"l":[]},1]]}}'},  # a key that can't be hashed
        {"poplin.tree": deep},
        {"poplin.tree": '{"version":1,"tree":{"d":[]}}', "poplin.crc32": "[1]"},
    ]
    for number, metadata in enumerate(hostile):
        path = tmp_path / f"{number}.safetensors"
        save_file({}, path, metadata={"poplin.reader": "safetensors", "poplin.crc32": "{}"} | metadata)
        with pytest.raises(DamagedCheckpointError):
            io.load_checkpoint(path)
    path = tmp_path / "pickle.safetensors"
    path.write_bytes(pickle.dumps(Touch()))
    with pytest.raises(DamagedCheckpointError):
        io.load_checkpoint(path, weights_only=False)
    assert not (tmp_path / "executed").exists()


def test_a_resumed_training_ends_as_an_uninterrupted_one(io, tmp_path):
    def train(fabric, model, optimizer, steps):
        for step in steps:
            loss = model(torch.full((2, 3), float(step))).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()

    def start(fabric):
        torch.manual_seed(0)
        module = nn.Linear(3, 2)
        return fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1))

    with Fabric(accelerator="cpu", devices=1, plugins=io) as fabric:
        whole = start(fabric)
        train(fabric, *whole, range(6))
        first = start(fabric)
        train(fabric, *first, range(3))
        url = f"memory://contrib/{tmp_path.name}.safetensors"
        for path in (tmp_path / "half.safetensors", url):
            fabric.save(path, {"model": first[0], "optimizer": first[1], "step": 3})
            second = start(fabric)
            fabric.load(path, {"model": second[0], "optimizer": second[1]})
            train(fabric, *second, range(3, 6))
            assert torch.equal(second[0].weight, whole[0].weight)


def test_arguments_that_cannot_be_meant(io, tmp_path):
    with pytest.raises(ArgumentTypeError):
        io.save_checkpoint([1], tmp_path / "x")
    with pytest.raises(CheckpointError, match="not free"):
        io.save_checkpoint({}, tmp_path)
    io.save_checkpoint({}, tmp_path / "x")
    assert io.load_checkpoint(tmp_path / "x") == {}
    with pytest.raises(ArgumentTypeError, match="map_location"):
        io.load_checkpoint(tmp_path / "x", map_location=lambda storage, where: storage)
