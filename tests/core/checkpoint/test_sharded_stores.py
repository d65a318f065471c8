"""Object stores, weights in other formats, and one file from a folder."""

import json
import struct
import subprocess
import sys

import fsspec
import pytest
import torch
from fsspec import AbstractFileSystem
from torch import nn

from poplin.checkpoint import ShardedCheckpointIO, TorchCheckpointIO, consolidate
from poplin.errors import (
    ArgumentValueError,
    CheckpointError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
)
from poplin.strategies import SingleDeviceStrategy


class BucketFile:
    """A write that appears when it is closed, and not before."""

    def __init__(self, store, path):
        self.store, self.path, self.closed, self.data = store, path, False, b""

    def write(self, data):
        self.data += bytes(data)
        return len(data)

    def flush(self):
        pass

    def discard(self):
        self.closed = True

    def close(self):
        if not self.closed:
            self.closed = True
            self.store.put_object(self.path, self.data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Bucket(AbstractFileSystem):
    """An object store: whole objects appear at once under their names; nothing is renamed, moved or copied."""

    protocol = "bucket"
    cachable = True
    objects: dict = {}
    puts: list = []
    #: The name on which the process "dies", and whether it did.
    dies_at = None

    def put_object(self, path, data):
        if self.dies_at is not None and self.dies_at in path:
            raise KeyboardInterrupt  # no handler of ours may mend anything after it: the store is gone, too
        self.objects[self._strip_protocol(path)] = data
        self.puts.append(path.rpartition("/")[2])

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path).rstrip("/")
        if path in self.objects:
            found = [{"name": path, "size": len(self.objects[path]), "type": "file"}]
        else:
            inside = {name for name in self.objects if name.startswith(f"{path}/")}
            if not inside:
                raise FileNotFoundError(path)
            found = []
            for name in sorted(inside):
                first, _, more = name.removeprefix(f"{path}/").partition("/")
                kind, size = ("directory", 0) if more else ("file", len(self.objects[name]))
                entry = {"name": f"{path}/{first}", "size": size, "type": kind}
                if entry not in found:
                    found.append(entry)
        return found if detail else [entry["name"] for entry in found]

    def _open(self, path, mode="rb", **kwargs):
        import io

        path = self._strip_protocol(path)
        if mode == "wb":
            return BucketFile(self, path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return io.BytesIO(self.objects[path])

    def pipe_file(self, path, value, **kwargs):
        self.put_object(path, value)

    def rm_file(self, path):
        if self.dies_at is None:
            self.objects.pop(self._strip_protocol(path), None)

    def makedirs(self, path, exist_ok=False):
        pass

    def refuse(self, *args, **kwargs):
        raise NotImplementedError("an object store can't")

    mv = move = rename = copy = cp = cp_file = mv_file = refuse


@pytest.fixture
def bucket():
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    Bucket.objects, Bucket.puts, Bucket.dies_at = {}, [], None
    return Bucket


def state(value=1.0):
    return {"model": {"weight": torch.full((3, 4), value), "bias": torch.full((4,), value)}, "step": int(value)}


def same(one, other):
    return one["step"] == other["step"] and all(torch.equal(one["model"][k], other["model"][k]) for k in one["model"])


def test_a_folder_in_an_object_store(bucket):
    sharded = ShardedCheckpointIO()
    sharded.save_checkpoint(state(1.0), "bucket://runs/a")
    assert bucket.puts[0] == "poplin.json"  # "writing" comes first, "whole" last
    assert bucket.puts[-1] == "poplin.json"
    assert same(sharded.load_checkpoint("bucket://runs/a"), state(1.0))
    assert sharded.recognises("bucket://runs/a")
    assert not sharded.recognises("bucket://runs")
    sharded.save_checkpoint(state(2.0), "bucket://runs/a")
    assert same(sharded.load_checkpoint("bucket://runs/a"), state(2.0))
    assert len(bucket.objects) == 4
    with pytest.raises(CheckpointNotFoundError):
        sharded.load_checkpoint("bucket://runs/b")
    sharded.remove_checkpoint("bucket://runs/a")
    assert bucket.objects == {}


@pytest.mark.parametrize("dies_at", ["distcp", "poplin-values", ".metadata", "poplin.json"])
@pytest.mark.parametrize("before", [False, True])
def test_a_store_never_shows_half_a_checkpoint_as_whole(bucket, before, dies_at):
    sharded = ShardedCheckpointIO()
    if before:
        sharded.save_checkpoint(state(1.0), "bucket://runs/a")
    elif dies_at == "poplin.json":
        return  # the very first object: nothing is there afterwards
    bucket.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        sharded.save_checkpoint(state(2.0), "bucket://runs/a")
    if before:
        assert same(sharded.load_checkpoint("bucket://runs/a"), state(1.0))
    else:
        with pytest.raises(DamagedCheckpointError, match="bucket://runs/a is incomplete"):
            sharded.load_checkpoint("bucket://runs/a")
    bucket.dies_at = None
    sharded.save_checkpoint(state(3.0), "bucket://runs/a")
    assert same(sharded.load_checkpoint("bucket://runs/a"), state(3.0))
    assert len(bucket.objects) == 4


def test_the_memory_file_system_of_fsspec():
    sharded = ShardedCheckpointIO()
    sharded.save_checkpoint(state(1.0), "memory://poplin/a")
    assert same(sharded.load_checkpoint("memory://poplin/a"), state(1.0))
    sharded.remove_checkpoint("memory://poplin/a")
    assert not sharded.recognises("memory://poplin/a")


# --- safetensors


def safetensors(entries, metadata=None):
    """The bytes of a file of the format, made from its description alone."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (kind, shape, content) in entries.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_weights_in_the_safetensors_format(tmp_path):
    strategy = SingleDeviceStrategy(device="cpu", checkpoint_io=TorchCheckpointIO())
    from poplin.checkpoint.state import load, load_raw

    weight, bias = torch.randn(2, 3), torch.randn(2).bfloat16()
    path = tmp_path / "model.safetensors"
    entries = {
        "weight": ("F32", [2, 3], weight.numpy().tobytes()),
        "bias": ("BF16", [2], bias.view(torch.int16).numpy().tobytes()),
    }
    path.write_bytes(safetensors(entries, {"format": "pt"}))
    layer = nn.Linear(3, 2)
    load_raw(path, layer, strategy=strategy)
    assert torch.equal(layer.weight, weight)
    assert torch.equal(layer.bias, bias.float())
    assert torch.equal(load(path, strategy=strategy)["bias"], bias)
    assert TorchCheckpointIO.recognises(path)
    good = path.read_bytes()
    for bad in (good[:-1], good[:20], good.replace(b"F32", b"F99"), good.replace(b'"shape"', b'"shapf"')):
        path.write_bytes(bad)
        with pytest.raises(DamagedCheckpointError, match="safetensors header can't be read"):
            load_raw(path, layer, strategy=strategy)


# --- consolidation


@pytest.fixture
def folder(tmp_path):
    layer = nn.Linear(3, 400)
    tied = nn.ModuleDict({"a": layer, "b": layer})
    checkpoint = {
        "model": tied.state_dict(),
        "step": 3,
        "sparse": torch.eye(2).to_sparse(),
        "big": torch.randn(600, 600),
    }
    ShardedCheckpointIO().save_checkpoint(checkpoint, tmp_path / "folder")
    return tmp_path / "folder", checkpoint


def test_one_file_from_a_folder(folder):
    path, checkpoint = folder
    seen = []
    written = consolidate(path, progress=lambda done, total: seen.append((done, total)))
    assert written == f"{path}.consolidated"
    assert seen[-1][0] == seen[-1][1] == 600 * 600 * 4 + 400 * 4 * 4
    back = torch.load(written, weights_only=True)
    assert back["step"] == 3
    assert torch.equal(back["big"], checkpoint["big"])
    assert back["model"]["a.weight"].data_ptr() == back["model"]["b.weight"].data_ptr()
    assert torch.equal(TorchCheckpointIO().load_checkpoint(written)["model"]["b.bias"], checkpoint["model"]["b.bias"])
    assert sorted(p.name for p in path.parent.iterdir()) == ["folder", "folder.consolidated"]


def test_a_safetensors_file_from_a_folder(folder, tmp_path):
    path, checkpoint = folder
    written = consolidate(path, tmp_path / "w.safetensors", key="model")
    back = TorchCheckpointIO().load_checkpoint(written)
    assert {name: value.tolist() for name, value in back.items()} == {
        name: value.tolist() for name, value in checkpoint["model"].items()
    }
    with pytest.raises(CheckpointError, match="can't hold sparse"):
        consolidate(path, tmp_path / "all.safetensors")
    with pytest.raises(ArgumentValueError, match="has no 'modle'"):
        consolidate(path, key="modle")
    with pytest.raises(CheckpointNotFoundError):
        consolidate(tmp_path / "none")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "w.safetensors"]


@pytest.mark.slow
def test_the_command(folder, tmp_path):
    path, checkpoint = folder
    command = [sys.executable, "-m", "poplin", "consolidate", str(path)]
    done = subprocess.run([*command, "--output_file", str(tmp_path / "x.pt")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'x.pt'}\n")
    assert "100 %" in done.stderr
    assert torch.equal(torch.load(tmp_path / "x.pt")["big"], checkpoint["big"])
    (path / "poplin.json").write_text("{}")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "DamagedCheckpointError" in done.stderr


@pytest.mark.extras
def test_files_of_the_safetensors_library_and_files_for_it(folder, tmp_path):
    import safetensors.torch as library

    written = consolidate(folder[0], tmp_path / "ours.safetensors", key="model")
    read = library.load_file(written)
    assert all(torch.equal(read[name], value) for name, value in folder[1]["model"].items())
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.uint16, torch.bool)
    tensors = {str(kind): torch.ones(3, 2).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(1.5), "none": torch.empty(0)}
    library.save_file(tensors, tmp_path / "theirs.safetensors", metadata={"by": "them"})
    back = TorchCheckpointIO().load_checkpoint(tmp_path / "theirs.safetensors")
    assert {name: (value.dtype, value.shape) for name, value in back.items()} == {
        name: (value.dtype, value.shape) for name, value in tensors.items()
    }
    assert all(torch.equal(back[name].double(), value.double()) for name, value in tensors.items())
