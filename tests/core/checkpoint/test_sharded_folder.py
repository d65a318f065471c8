"""Folders written and read by one process: what is in them, what is refused, what stands after a failure."""

import json
import os
import pickle
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poplin.checkpoint.state as checkpoint_state
from poplin.checkpoint import SafeStorageReader, ShardedCheckpointIO, TorchCheckpointIO
from poplin.errors import (
    ArgumentTypeError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    PartlyLoadedError,
    UnsafeCheckpointError,
)
from poplin.precision import Precision
from poplin.strategies import SingleDeviceStrategy


class Saver:
    """Saves and loads as Fabric does, on one device, without a Fabric."""

    def __init__(self, checkpoint_io):
        self.strategy = SingleDeviceStrategy(device="cpu", checkpoint_io=checkpoint_io, precision=Precision())
        self.more = {"strategy": self.strategy, "precision": self.strategy.precision}

    def save(self, path, state, **kwargs):
        checkpoint_state.save(path, state, **self.more, **kwargs)

    def save_async(self, path, state):
        return checkpoint_state.save_async(path, state, **self.more)

    def load(self, path, state=None, strict=True, weights_only=None):
        return checkpoint_state.load(path, state, strict, weights_only, **self.more)

    def load_raw(self, path, obj, strict=True, reader=None):
        checkpoint_state.load_raw(path, obj, strict, strategy=self.strategy, reader=reader)


@pytest.fixture
def saver():
    return Saver(ShardedCheckpointIO())


@pytest.fixture
def files():
    return Saver(TorchCheckpointIO())


def quietly(function, *args, **kwargs):
    """torch's DCP warns that nothing is distributed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return one == other


def snapshot(*objects):
    return [
        {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in thing.state_dict().items()}
        for thing in objects
    ]


def manifest(folder):
    return json.loads((folder / "poplin.json").read_text())


# --- what is saved comes back


def test_a_training_comes_back_as_from_a_file(saver, files, trained, tmp_path):
    model, optimizer, scheduler = trained(0)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 3, "nested": {"a": (1, [2, "x"])}}
    saver.save(tmp_path / "folder", state)
    files.save(tmp_path / "file", state)
    results = []
    for where, path in ((saver, "folder"), (files, "file")):
        other = dict(zip(("model", "optimizer", "scheduler"), trained(1), strict=True))
        rest = where.load(tmp_path / path, {**other, "step": 0})
        assert rest == {"nested": {"a": (1, [2, "x"])}}
        results.append(other)
    for name in ("model", "optimizer", "scheduler"):
        assert equal(results[0][name].state_dict(), state[name].state_dict())
        assert equal(results[1][name].state_dict(), state[name].state_dict())
    assert equal(saver.load(tmp_path / "folder"), files.load(tmp_path / "file"))


def test_values_of_every_kind(saver, tmp_path):
    tied = torch.randn(3, 4)
    state = {
        "dtypes": [
            torch.ones(2, 3).to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.complex64)
        ],
        "more": {"bool": torch.tensor([True, False]), "float8": torch.ones(4).to(torch.float8_e4m3fn)},
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "view": torch.arange(12.0).view(3, 4).t(),
        "slice": torch.arange(1000.0)[10:12],
        "expanded": torch.ones(1).expand(4),
        "conj": torch.tensor([1 + 2j]).conj(),
        "tied": [tied, tied, tied.view(3, 4)],
        "sparse": torch.eye(3).to_sparse(),
        "keys": {1: "a", (2, 3): torch.ones(1), "a.b": torch.zeros(1), None: None},
        "a": {"b": {"c": torch.ones(2)}, "b.c": torch.zeros(2)},
        "plain": (1, 2.5, None, "text", b"bytes", 2**80, [], {}, ()),
    }
    saver.save(tmp_path / "x", state)
    back = saver.load(tmp_path / "x")
    assert equal(back.pop("sparse").to_dense(), state.pop("sparse").to_dense())
    assert torch.equal(back["more"].pop("float8").float(), state["more"].pop("float8").float())
    assert equal(back, state)
    assert back["tied"][0] is back["tied"][2]
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "x").iterdir()}
    assert max(sizes.values()) < 60_000  # of the slice, two numbers


def ramp(shape):
    return torch.arange(1.0 * torch.Size(shape).numel()).view(shape)


LEAVES = st.one_of(st.integers(), st.text(max_size=5), st.none(), st.lists(st.integers(0, 3), max_size=3).map(ramp))


def containers(inner):
    mappings = st.dictionaries(st.text(max_size=4), inner, max_size=3)
    return st.one_of(st.lists(inner, max_size=3), mappings, st.tuples(inner, inner))


@settings(max_examples=20, deadline=None)
@given(st.recursive(LEAVES, containers, max_leaves=8))
def test_any_state_comes_back(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("any") / "x"
    checkpoint_io = ShardedCheckpointIO()
    checkpoint_io.save_checkpoint({"value": value}, path)
    assert equal(checkpoint_io.load_checkpoint(path), {"value": value})


def test_what_nobody_asked_for_is_read_when_it_is_looked_at(saver, trained, tmp_path):
    model, optimizer, _ = trained(0)
    saver.save(tmp_path / "x", {"model": model, "optimizer": optimizer, "step": 3, "mean": torch.ones(2)})
    rest = saver.load(tmp_path / "x", {"model": trained(1)[0]})
    assert rest["step"] == 3
    assert torch.equal(rest["mean"], torch.ones(2))
    assert list(rest["optimizer"]) == ["state", "param_groups"]
    assert torch.equal(rest["optimizer"]["state"]["0.weight"]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
    assert "read when looked at" in repr(rest["optimizer"])
    assert "0.weight" in saver.load(tmp_path / "x", {})["model"]


def test_torch_reads_the_tensors_by_their_names(saver, tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 4))
    model[1].weight = model[0].weight
    saver.save(tmp_path / "x", {"model": model})
    empty = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    quietly(dcp.load, empty, checkpoint_id=tmp_path / "x")
    assert equal(empty["model"], dict(model.state_dict()))
    assert manifest(tmp_path / "x")["aliases"] == {"model.1.weight": "model.0.weight"}
    assert [entry["name"] for entry in manifest(tmp_path / "x")["tensors"]] == [
        "model.0.weight",
        "model.0.bias",
        "model.1.bias",
    ]


def test_names_are_the_users_whatever_wraps_a_module(saver, tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    saver.save(tmp_path / "x", {"model": torch.compile(nn.Sequential(torch.compile(model[0]), model[1]))})
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    saver.load(tmp_path / "x", {"model": other})
    assert equal(dict(other.state_dict()), dict(model.state_dict()))


# --- one verdict for file and folder


@pytest.mark.parametrize(
    ("change", "strict"),
    [
        ("missing", True),
        ("unexpected", True),
        ("shape", True),
        ("shape", False),
        ("no such key", True),
        ("optimizer of another kind", True),
        ("missing", False),
    ],
)
def test_the_verdict_and_the_message_are_those_of_a_file(saver, files, tmp_path, change, strict):
    saved = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(saved.parameters())
    for where in (saver, files):
        where.save(tmp_path / type(where.strategy.checkpoint_io).__name__, {"model": saved, "optimizer": optimizer})
    told = []
    for where in (saver, files):
        model = nn.Sequential(nn.Linear(3, 5 if change == "shape" else 4), nn.Linear(5 if change == "shape" else 4, 2))
        if change == "missing":
            model.append(nn.Linear(2, 2))
        if change == "unexpected":
            model = nn.Sequential(nn.Linear(3, 4))
        state = {"modle" if change == "no such key" else "model": model}
        if change == "optimizer of another kind":
            state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        before = snapshot(model)
        path = tmp_path / type(where.strategy.checkpoint_io).__name__
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                where.load(path, state, strict=strict)
                told.append(str(caught[0].message).replace(str(path), "PATH"))
            except CheckpointMismatchError as error:
                told.append(str(error).replace(str(path), "PATH"))
                assert equal(snapshot(model), before)
    assert told[0] == told[1]


def test_a_filter_leaves_out_the_same_as_in_a_file(saver, files, trained, tmp_path):
    model, optimizer, _ = trained(0)
    keep = {"model": lambda name, value: "bias" not in name}
    for where in (saver, files):
        where.save(tmp_path / "x", {"model": model, "optimizer": optimizer}, filter=keep) if where is saver else None
    files.save(tmp_path / "y", {"model": model, "optimizer": optimizer}, filter=keep)
    assert equal(saver.load(tmp_path / "x"), files.load(tmp_path / "y"))
    with pytest.raises(ArgumentTypeError):
        saver.save(tmp_path / "z", {"model": model}, filter={"model": 1})
    assert not (tmp_path / "z").exists()


# --- damage


def damaged(saver, path, trained):
    """Loading raises and changes nothing. The message."""
    model, optimizer, _ = trained(1)
    before = snapshot(model)
    with pytest.raises(DamagedCheckpointError) as info:
        saver.load(path, {"model": model, "optimizer": optimizer, "step": 0})
    assert equal(snapshot(model), before)
    assert str(path) in str(info.value)
    return str(info.value)


@pytest.fixture
def whole(saver, trained, tmp_path):
    model, optimizer, _ = trained(0)
    saver.save(tmp_path / "whole", {"model": model, "optimizer": optimizer, "step": 3})
    return tmp_path / "whole"


def data_file(folder):
    return next(folder.glob("*.distcp"))


def test_a_data_file_that_is_cut_off(saver, whole, trained):
    file = data_file(whole)
    file.write_bytes(file.read_bytes()[:-700])
    assert f"{file.name} has {file.stat().st_size} of" in damaged(saver, whole, trained)


def test_a_data_file_that_is_missing(saver, whole, trained):
    data_file(whole).unlink()
    assert "is missing" in damaged(saver, whole, trained)


def test_a_bit_that_flipped_in_a_value_is_told_by_the_tensors_name(saver, whole, trained):
    entry = next(entry for entry in manifest(whole)["tensors"] if entry["name"] == "model.2.weight")
    file = data_file(whole)
    content = bytearray(file.read_bytes())
    content[entry["chunks"][0][3]] ^= 1
    file.write_bytes(content)
    assert "the values of model.2.weight are corrupt" in damaged(saver, whole, trained)


@pytest.mark.parametrize("name", ["poplin.json", "values"])
def test_plain_values_or_a_manifest_that_are_broken(saver, whole, trained, name):
    file = whole / name if name == "poplin.json" else next(whole.glob("poplin-values*"))
    for content in (b"", file.read_bytes()[:-10], file.read_bytes().replace(b"2", b"3", 1), b"{}", b"[]", b"\x00" * 9):
        file.write_bytes(content)
        damaged(saver, whole, trained)


def test_a_manifest_that_is_consistent_and_wrong(saver, whole, trained):
    from poplin.checkpoint.folder_manifest import FolderManifest

    text = (whole / "poplin.json").read_bytes()
    for change in ("part", "name", "file"):
        found = FolderManifest.from_json(text, "x")
        if change == "part":
            found.tensors["model.0.weight"] = found.tensors["model.0.weight"].__class__((9, 9), torch.float32, ())
        if change == "name":
            found.tensors.pop("model.0.weight")
        if change == "file":
            found.files = {f"../{name}": size for name, size in found.files.items()}
            found.tensors = {}
        (whole / "poplin.json").write_bytes(found.to_json())
        damaged(saver, whole, trained)


def test_a_folder_of_a_later_version(saver, whole):
    found = manifest(whole)
    found["version"] = 99
    (whole / "poplin.json").write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match="has the checkpoint format 99.*pip install -U poplin-core"):
        saver.load(whole)


def test_an_incomplete_folder_is_refused_by_name_and_may_be_written_again(saver, whole, trained):
    found = manifest(whole)
    from poplin.checkpoint.folder_manifest import FolderManifest

    begun = FolderManifest("writing", found["save_id"], 1)
    (whole / "poplin.json").write_bytes(begun.to_json())
    assert "is incomplete: a save into it has begun and not ended" in damaged(saver, whole, trained)
    with pytest.raises(BaseException, match="is incomplete"):
        quietly(dcp.load, {"step": 0}, storage_reader=SafeStorageReader(whole))
    saver.save(whole, {"step": 4})
    assert saver.load(whole) == {"step": 4}
    assert len(list(whole.iterdir())) == 3  # what the earlier one had written is gone


def test_nothing_there_a_file_there_and_a_folder_of_other_things(saver, files, tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="There is no checkpoint at"):
        saver.load(tmp_path / "none")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(DamagedCheckpointError, match="is no checkpoint"):
        saver.load(tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"other things stand \(notes.txt\)"):
        saver.save(tmp_path / "other", {"a": 1})
    assert os.listdir(tmp_path / "other") == ["notes.txt"]
    files.save(tmp_path / "file", {"a": 1})
    with pytest.raises(CheckpointError, match="is a file, and the checkpoint is to be a folder"):
        saver.save(tmp_path / "file", {"a": 1})
    with pytest.raises(CheckpointError, match="is a file, and this reader reads folders"):
        saver.load(tmp_path / "file")
    assert files.load(tmp_path / "file") == {"a": 1}


def test_a_failed_save_leaves_nothing_and_what_stood_there_stands(saver, whole, tmp_path, monkeypatch):
    import poplin.checkpoint.sharded_save as sharded_save

    before = sorted(path.name for path in whole.iterdir())
    content = saver.load(whole)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded_save, "write_item", full)
    for path in (whole, tmp_path / "new" / "deep"):
        with pytest.raises(CheckpointError, match="could not be written to .*No space left on device"):
            saver.save(path, {"a": torch.ones(3)})
    monkeypatch.undo()
    monkeypatch.setattr(sharded_save, "dcp_metadata", full)  # all data is written, and the commit fails
    for path in (whole, tmp_path / "new" / "deep"):
        with pytest.raises(CheckpointError, match="No space left on device"):
            saver.save(path, {"a": torch.ones(3)})
    assert sorted(path.name for path in whole.iterdir()) == before
    assert equal(saver.load(whole), content)
    assert not (tmp_path / "new").exists()


def test_saving_over_a_checkpoint_replaces_it_and_removing_leaves_what_is_others(saver, whole):
    (whole / "mine.txt").write_text("x")
    saver.save(whole, {"a": torch.ones(3)})
    assert equal(saver.load(whole), {"a": torch.ones(3)})
    assert len(list(whole.glob("*.distcp"))) == 1
    saver.strategy.checkpoint_io.remove_checkpoint(whole)
    assert os.listdir(whole) == ["mine.txt"]
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        saver.strategy.checkpoint_io.remove_checkpoint(whole)
    saver.strategy.checkpoint_io.remove_checkpoint(whole / "none")


# --- nothing executes


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_folder_with_a_program_in_it_executes_nothing(saver, tmp_path):
    exploded = tmp_path / "exploded"
    quietly(dcp.save, {"w": torch.ones(3), "x": 1}, checkpoint_id=tmp_path / "a")
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(Bomb(exploded)))
    quietly(dcp.save, {"w": torch.ones(3), "x": Bomb(exploded)}, checkpoint_id=tmp_path / "b")
    quietly(dcp.save, {"w": torch.ones(3)}, checkpoint_id=tmp_path / "c")
    torch.save({"x": Bomb(exploded)}, tmp_path / "c" / "meta.pt")
    for name, text in (("a", r"\.metadata holds posix\.mkdir"), ("b", "b: x holds what"), ("c", "meta.pt holds what")):
        with pytest.raises(UnsafeCheckpointError, match=text):
            saver.load(tmp_path / name)
        assert not exploded.exists()
    for name in "ab":
        with pytest.raises(BaseException, match="mkdir"):
            quietly(dcp.load, {"w": torch.ones(3), "x": 0}, storage_reader=SafeStorageReader(tmp_path / name))
        assert not exploded.exists()
    with pytest.raises(DamagedCheckpointError):  # the user's explicit way out executes it: and it is no metadata
        saver.load(tmp_path / "a", weights_only=False)
    assert exploded.exists()


def test_metadata_that_changes_classes_or_leads_out_of_the_folder(saver, tmp_path):
    from torch.distributed.checkpoint.metadata import Metadata

    quietly(dcp.save, {"w": torch.ones(3)}, checkpoint_id=tmp_path / "a")
    file = tmp_path / "a" / ".metadata"
    good = file.read_bytes()
    # push the class, then BUILD it with a slot state: setattr(Metadata, "version", 1)
    file.write_bytes(b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n(NX\x06\x00\x00\x00defaceK\x01sub.")
    file.write_bytes(pickle.dumps(Metadata)[:-1] + pickle.dumps((None, {"deface": 1}))[2:-1] + b"b.")
    with pytest.raises(DamagedCheckpointError):
        saver.load(tmp_path / "a")
    assert not hasattr(Metadata, "deface")
    file.write_bytes(good.replace(b"__0_0.distcp", b"/etc/hosts.."))
    with pytest.raises(DamagedCheckpointError, match="leads out of the folder"):
        saver.load(tmp_path / "a")
    file.write_bytes(good[: len(good) // 2])
    with pytest.raises(DamagedCheckpointError, match="can't be read"):
        saver.load(tmp_path / "a")


# --- folders of others


def test_a_folder_that_torch_wrote(saver, trained, tmp_path):
    model, optimizer, _ = trained(0)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "list": [1, {"a": (2, 3)}]}
    quietly(dcp.save, state, checkpoint_id=tmp_path / "x")
    other, other_optimizer, _ = trained(1)
    mine = {"model": other, "optimizer": other_optimizer, "step": 0}
    rest = saver.load(tmp_path / "x", mine)
    assert mine["step"] == 3
    assert rest == {"list": [1, {"a": [2, 3]}]} or rest == {"list": [1, {"a": (2, 3)}]}
    assert equal(dict(other.state_dict()), dict(model.state_dict()))
    assert equal(other_optimizer.state_dict()["state"], optimizer.state_dict()["state"])
    quietly(dcp.save, dict(model.state_dict()), checkpoint_id=tmp_path / "raw")
    fresh = trained(2)[0]
    saver.load_raw(tmp_path / "raw", fresh)
    assert equal(dict(fresh.state_dict()), dict(model.state_dict()))
    file = data_file(tmp_path / "x")
    file.write_bytes(file.read_bytes()[:-700])
    with pytest.raises(DamagedCheckpointError, match="bytes"):
        saver.load(tmp_path / "x")
    saver.save(tmp_path / "x", {"a": 1})
    assert saver.load(tmp_path / "x") == {"a": 1}
    assert not list((tmp_path / "x").glob("*.distcp"))


def test_the_states_of_an_optimizer_by_name_as_torchs_helpers_write_them(saver, trained, tmp_path):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer, _ = trained(0)
    weights, states = get_state_dict(model, optimizer)
    quietly(dcp.save, {"model": weights, "optimizer": states}, checkpoint_id=tmp_path / "x")
    other, other_optimizer, _ = trained(1)
    saver.load(tmp_path / "x", {"model": other, "optimizer": other_optimizer})
    assert equal(other_optimizer.state_dict()["state"], optimizer.state_dict()["state"])


# --- partly loaded


def test_objects_restored_in_part_refuse_use_until_a_load_succeeds(saver, whole, trained, tmp_path, monkeypatch):
    model, optimizer, _ = trained(1)
    state = {"model": model, "optimizer": optimizer}

    def broken(self, state, strict=True):
        raise RuntimeError("the device was lost")

    broken.__module__ = nn.Module.load_state_dict.__module__  # code of torch's, of which nobody expects it
    monkeypatch.setattr(nn.Module, "load_state_dict", broken)
    with pytest.raises(CheckpointError, match="the device was lost.*restored in part"):
        saver.load(whole, state)
    monkeypatch.undo()
    for use in (lambda: model(torch.randn(5, 3)), optimizer.step, lambda: saver.save(tmp_path / "y", state)):
        with pytest.raises(PartlyLoadedError, match="was restored only in part: loading .*whole failed"):
            use()
    assert not (tmp_path / "y").exists()
    saver.load(whole, state)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    assert not model._forward_pre_hooks
    saver.save(tmp_path / "y", state)


# --- in the background


def test_a_save_in_the_background_is_of_the_moment_of_the_call(saver, tmp_path):
    tensor = torch.ones(1000)
    handle = saver.save_async(tmp_path / "x", {"a": tensor, "b": [tensor.view(10, 100)]})
    tensor.zero_()
    handle.wait()
    assert equal(saver.load(tmp_path / "x"), {"a": torch.ones(1000), "b": [torch.ones(10, 100)]})
    assert handle.done()


def test_errors_of_the_background_come_at_wait_or_at_the_next_save(saver, tmp_path, monkeypatch):
    import poplin.checkpoint.sharded_save as sharded_save

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded_save, "write_item", full)
    handle = saver.save_async(tmp_path / "x", {"a": torch.ones(3)})
    with pytest.raises(CheckpointError, match="No space left"):
        handle.wait()
    assert not (tmp_path / "x").exists()
    saver.save_async(tmp_path / "x", {"a": torch.ones(3)})
    with pytest.raises(CheckpointError, match="No space left"):
        saver.save(tmp_path / "y", {"a": 1})
    monkeypatch.undo()
    saver.save(tmp_path / "y", {"a": 1})
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "notes").write_text("")
    with pytest.raises(CheckpointError, match="other things stand"):
        saver.save_async(tmp_path / "z", {"a": 1})


def test_a_folder_that_lightning_wrote(saver, tmp_path):
    """``data/lightning_fsdp1`` was written by FSDPStrategy of lightning-fabric 2.6 in two processes."""
    from pathlib import Path

    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = Path(__file__).parent / "data" / "lightning_fsdp1"
    quietly(dcp_to_torch_save, folder, tmp_path / "by torch")
    expected = torch.load(tmp_path / "by torch", weights_only=False)
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 1, bias=False))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer, "step": 0}
    assert saver.load(folder, state) == {"nested": {"a": [1, 2]}}
    assert state["step"] == 7
    assert equal(dict(model.state_dict()), {name: expected["model"][name] for name in model.state_dict()})
    assert optimizer.param_groups[0]["lr"] == 0.02
    for name, parameter in model.named_parameters():
        for key, value in expected["optimizer"]["state"][name].items():
            assert torch.equal(optimizer.state[parameter][key], value)


def test_what_an_object_does_not_take_is_not_read(saver, whole, trained):
    entry = next(entry for entry in manifest(whole)["tensors"] if entry["name"] == "model.2.weight")
    file = data_file(whole)
    content = bytearray(file.read_bytes())
    content[entry["chunks"][0][3]] ^= 1
    file.write_bytes(content)
    first = nn.Sequential(*trained(1)[0][:2])
    with pytest.warns(UserWarning, match=r"unexpected in the checkpoint \(2\): model.2.weight, model.2.bias"):
        saver.load(whole, {"model": first}, strict=False)
    assert torch.equal(first[0].weight, trained(0)[0][0].weight)
