"""The file: written whole or not at all, checked byte by byte when it is read."""

import io
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zipfile

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn

from poplin.checkpoint import TorchCheckpointIO
from poplin.checkpoint.format import FORMAT_VERSION, MANIFEST
from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    UnsafeCheckpointError,
)


@pytest.fixture
def file_io():
    return TorchCheckpointIO()


@pytest.fixture
def checkpoint():
    torch.manual_seed(0)
    return {"model": nn.Linear(100, 100).state_dict(), "step": 3}


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_the_manifest_says_what_is_in_the_file(file_io, checkpoint, tmp_path):
    path = tmp_path / "a.ckpt"
    file_io.save_checkpoint(checkpoint, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == f"archive/{MANIFEST}"
        manifest = json.loads(archive.read(f"archive/{MANIFEST}"))
        assert manifest["version"] == FORMAT_VERSION
        weight, bias = manifest["tensors"]
        assert weight == {
            "name": "model.weight",
            "shape": [100, 100],
            "dtype": "float32",
            "nbytes": 40000,
            "record": "data/0",
        }
        assert manifest["records"]["data/0"] == [40000, archive.getinfo("archive/data/0").CRC]
        assert archive.read(f"archive/{bias['record']}") == checkpoint["model"]["bias"].numpy().tobytes()
    mapped = torch.load(path, weights_only=True, mmap=True)
    assert torch.equal(mapped["model"]["weight"], checkpoint["model"]["weight"])


def test_every_kind_of_damage_is_one_clear_error(file_io, checkpoint, tmp_path):
    path = tmp_path / "a.ckpt"
    file_io.save_checkpoint(checkpoint, path)
    whole = path.read_bytes()
    bad = tmp_path / "bad.ckpt"

    def refused(content, match, error=DamagedCheckpointError):
        bad.write_bytes(content)
        with pytest.raises(error, match=match) as info:
            file_io.load_checkpoint(bad)
        assert str(bad) in str(info.value)

    refused(b"", "is empty")
    for length in (3, 100, len(whole) // 2, len(whole) - 1):
        refused(whole[:length], "cut off|no checkpoint")
    at = whole.index(checkpoint["model"]["weight"].numpy().tobytes()) + 1000
    refused(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], r"model\.weight \(corrupt\)")
    refused(b"hello world", "no checkpoint: it begins with")
    refused(b"\x93NUMPY\x01\x00", "no checkpoint")
    refused(pickle.dumps({"a": 1}, protocol=2), "can't be read")

    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", "x")
    refused(other.getvalue(), "without the data that torch.save writes")
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), script)
    refused(script.getvalue(), "TorchScript")
    tensor = io.BytesIO()
    torch.save(torch.ones(1), tensor)
    refused(tensor.getvalue(), "holds a Tensor, not a dictionary")


def test_no_flipped_bit_goes_unnoticed(file_io, tmp_path):
    path = tmp_path / "a.ckpt"
    value = torch.arange(16.0)
    file_io.save_checkpoint({"x": value, "n": 12345}, path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            data = file_io.load_checkpoint(path)
        except CheckpointError:
            continue
        assert torch.equal(data["x"], value)  # padding, or a header that says nothing
        assert data["n"] == 12345


def test_a_later_version_is_refused_with_both_versions(file_io, checkpoint, tmp_path, monkeypatch):
    path = tmp_path / "a.ckpt"
    monkeypatch.setattr("poplin.checkpoint.format.FORMAT_VERSION", 7)
    file_io.save_checkpoint(checkpoint, path)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"format 7.*up to format 1.*pip install -U poplin-core"):
        file_io.load_checkpoint(path)


def test_files_of_plain_torch_and_of_lightning_are_read(file_io, saver, trained, tmp_path):
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    model, optimizer, _ = trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 4}, tmp_path / "plain.pt")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 4},
        tmp_path / "old.pt",
        _use_new_zipfile_serialization=False,
    )
    wrapped, wrapped_optimizer = fabric.setup(model, optimizer)
    fabric.save(tmp_path / "fabric.ckpt", {"model": wrapped, "optimizer": wrapped_optimizer, "step": 4})
    compiled = {f"module.{name.replace('0.', '0._orig_mod.')}": value for name, value in model.state_dict().items()}
    torch.save({"model": compiled, "optimizer": optimizer.state_dict(), "step": 4}, tmp_path / "compiled.pt")
    for name in ("plain.pt", "old.pt", "fabric.ckpt", "compiled.pt"):
        other, other_optimizer, _ = trained(seed=1)
        state = {"model": other, "optimizer": other_optimizer, "step": 0}
        assert saver.load(tmp_path / name, state) == {}
        assert state["step"] == 4
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
        assert repr(optimizer.state_dict()) == repr(other_optimizer.state_dict())


def test_nothing_in_a_file_executes(file_io, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    torch.save({"x": Evil()}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("evil.pt", "old.pt"):
        for weights_only in (None, True):
            with pytest.raises(UnsafeCheckpointError, match="could execute code"):
                file_io.load_checkpoint(tmp_path / name, weights_only=weights_only)
    assert not (tmp_path / "executed").exists()
    file_io.load_checkpoint(tmp_path / "evil.pt", weights_only=False)
    assert (tmp_path / "executed").exists()


def test_what_is_not_there_and_what_is_no_path(file_io, checkpoint, tmp_path):
    file_io.save_checkpoint(checkpoint, tmp_path / "epoch-10.ckpt")
    with pytest.raises(CheckpointNotFoundError, match=r"In the same folder: epoch-10\.ckpt"):
        file_io.load_checkpoint(tmp_path / "epoch_10.ckpt")
    with pytest.raises(FileNotFoundError):
        file_io.load_checkpoint(tmp_path / "nowhere" / "a.ckpt")
    (tmp_path / "folder").mkdir()
    for call in (file_io.load_checkpoint, file_io.remove_checkpoint, lambda p: file_io.save_checkpoint({}, p)):
        with pytest.raises(CheckpointError, match="is a folder"):
            call(tmp_path / "folder")
    for path, error in (
        (None, ArgumentTypeError),
        (3, TypeError),
        (b"x", TypeError),
        ("", ValueError),
        ("a\0", ValueError),
    ):
        with pytest.raises(error):
            file_io.save_checkpoint(checkpoint, path)
    with pytest.raises(ArgumentValueError, match="nosuch"):
        file_io.save_checkpoint(checkpoint, "nosuch://bucket/a.ckpt")
    with pytest.raises(CheckpointError, match="neither a file nor free"):
        file_io.save_checkpoint(checkpoint, "/dev/null")
    with pytest.raises(ArgumentTypeError, match="dictionary"):
        file_io.save_checkpoint([1], tmp_path / "a.ckpt")


def test_unusual_paths(file_io, checkpoint, tmp_path, monkeypatch):
    names = ["ünï\U0001f333.ckpt", "with space.ckpt", "-dash", "x" * 255, "deep/er/a.ckpt"]
    for name in names:
        file_io.save_checkpoint(checkpoint, tmp_path / name)
        assert file_io.load_checkpoint(tmp_path / name)["step"] == 3
        assert file_io.recognises(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    file_io.save_checkpoint(checkpoint, "relative.ckpt")
    assert (tmp_path / "relative.ckpt").exists()
    (tmp_path / "link.ckpt").symlink_to("relative.ckpt")
    file_io.save_checkpoint({"step": 4}, tmp_path / "link.ckpt")
    assert (tmp_path / "link.ckpt").is_symlink()
    assert file_io.load_checkpoint("relative.ckpt")["step"] == 4
    (tmp_path / "dangling.ckpt").symlink_to("new.ckpt")
    file_io.save_checkpoint({"step": 5}, tmp_path / "dangling.ckpt")
    assert file_io.load_checkpoint(tmp_path / "new.ckpt")["step"] == 5
    umask = os.umask(0o022)
    os.umask(umask)
    assert (tmp_path / "new.ckpt").stat().st_mode & 0o777 == 0o666 & ~umask
    file_io.remove_checkpoint("relative.ckpt")
    file_io.remove_checkpoint("relative.ckpt")
    assert not file_io.recognises("relative.ckpt")
    (tmp_path / "text").write_text("hello")
    assert not file_io.recognises("text")


@pytest.mark.parametrize("nameless", [True, False])
def test_a_full_disk_leaves_the_previous_checkpoint_and_nothing_else(file_io, small_disk, monkeypatch, nameless):
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE")
    file_io.save_checkpoint({"step": 1}, small_disk / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"a\.ckpt: No space left on device"):
        file_io.save_checkpoint({"step": 2, "x": torch.zeros(2_000_000)}, small_disk / "a.ckpt")
    with pytest.raises(CheckpointError, match="No space left"):
        file_io.save_checkpoint({"x": torch.zeros(2_000_000)}, small_disk / "new" / "b.ckpt")
    assert [path.name for path in small_disk.iterdir()] == ["a.ckpt"]
    assert file_io.load_checkpoint(small_disk / "a.ckpt")["step"] == 1
    file_io.save_checkpoint({"step": 3, "x": torch.zeros(500_000)}, small_disk / "a.ckpt")  # the space was given back


@pytest.mark.skipif(os.geteuid() != 0, reason="changing user needs root")
def test_a_folder_without_write_permission():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        _as_nobody(pathlib.Path(folder))


def _as_nobody(tmp_path):
    script = """
        import os, sys
        from poplin.checkpoint import TorchCheckpointIO
        from poplin.errors import CheckpointError
        os.setuid(65534)
        try:
            TorchCheckpointIO().save_checkpoint({"step": 1}, sys.argv[1])
        except CheckpointError as error:
            print(error)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path / "a.ckpt"], capture_output=True, text=True
    )
    assert "a.ckpt: Permission denied" in result.stdout, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_process_killed_while_it_writes_leaves_the_previous_checkpoint_and_nothing_else(file_io, tmp_path):
    file_io.save_checkpoint({"step": 0, "x": torch.zeros(10)}, tmp_path / "a.ckpt")
    script = """
        import sys, torch
        from poplin.checkpoint import TorchCheckpointIO
        x = torch.zeros(30_000_000)
        step = 0
        while True:
            step += 1
            print(step, flush=True)
            TorchCheckpointIO().save_checkpoint({"step": step, "x": x}, sys.argv[1])
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path / "a.ckpt"], stdout=subprocess.PIPE, text=True
    )
    try:
        for _ in range(2):
            assert process.stdout.readline()
        time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]
    assert file_io.load_checkpoint(tmp_path / "a.ckpt")["step"] >= 1


def test_saves_to_one_path_at_once_leave_one_whole_checkpoint(file_io, tmp_path):
    def save(number):
        for _ in range(5):
            file_io.save_checkpoint({"number": number, "x": torch.full((1000,), float(number))}, tmp_path / "a.ckpt")

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "a.ckpt").exists():
            data = file_io.load_checkpoint(tmp_path / "a.ckpt")
            assert (data["x"] == data["number"]).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


class BreakingFileSystem(MemoryFileSystem):
    """Has no space for more than 1 MB in one file."""

    protocol = "breaking"
    store = {}
    pseudo_dirs = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("breaking://", "memory://"))

    def put_file(self, lpath, rpath, **kwargs):
        if os.path.getsize(lpath) > 1_000_000:
            with open(lpath, "rb") as file, self.open(rpath, "wb") as out:
                out.write(file.read(1000))
            raise OSError(28, "No space left on device")
        super().put_file(lpath, rpath, **kwargs)


def test_urls(file_io, saver, checkpoint, tmp_path):
    file_io.save_checkpoint(checkpoint, f"file://{tmp_path}/a.ckpt")
    assert file_io.load_checkpoint(tmp_path / "a.ckpt")["step"] == 3
    file_io.save_checkpoint(checkpoint, "memory://runs/one/a.ckpt")
    file_io.save_checkpoint({"step": 4}, "memory://runs/one/a.ckpt")
    assert file_io.load_checkpoint("memory://runs/one/a.ckpt")["step"] == 4
    assert file_io.recognises("memory://runs/one/a.ckpt")
    memory = fsspec.filesystem("memory")
    assert memory.ls("/runs/one", detail=False) == ["/runs/one/a.ckpt"]
    with pytest.raises(CheckpointNotFoundError, match=r"In the same folder: a\.ckpt"):
        file_io.load_checkpoint("memory://runs/one/b.ckpt")
    memory.pipe("/runs/one/a.ckpt", memory.cat("/runs/one/a.ckpt")[:-5])
    with pytest.raises(DamagedCheckpointError, match=r"memory://runs/one/a\.ckpt"):
        file_io.load_checkpoint("memory://runs/one/a.ckpt")
    file_io.remove_checkpoint("memory://runs/one/a.ckpt")
    assert not memory.exists("/runs/one/a.ckpt")
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    saver.save("memory://m.ckpt", {"model": model})
    saver.load("memory://m.ckpt", {"model": other})
    assert torch.equal(model.weight, other.weight)


def test_a_store_that_fails_keeps_the_previous_checkpoint(file_io, checkpoint):
    fsspec.register_implementation("breaking", BreakingFileSystem, clobber=True)
    file_io.save_checkpoint({"step": 1}, "breaking://a.ckpt")
    with pytest.raises(CheckpointError, match=r"breaking://a\.ckpt: No space left"):
        file_io.save_checkpoint({"x": torch.zeros(1_000_000)}, "breaking://a.ckpt")
    assert BreakingFileSystem().ls("/", detail=False) == ["/a.ckpt"]
    assert file_io.load_checkpoint("breaking://a.ckpt")["step"] == 1


def test_tensors_of_every_dtype(file_io, tmp_path):
    dtypes = [
        getattr(torch, name)
        for name in "uint8 int8 int16 int32 int64 uint16 uint32 uint64 bool float16 bfloat16 float32 float64 complex64 "
        "complex128 float8_e4m3fn float8_e5m2".split()
    ]
    state = {str(dtype): torch.tensor([0, 1, 1]).to(dtype) for dtype in dtypes}
    state["quantized"] = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    state["csr"] = torch.eye(3).to_sparse_csr()
    state["parameter"] = nn.Parameter(torch.ones(2))
    file_io.save_checkpoint(state, tmp_path / "a.ckpt")
    data = file_io.load_checkpoint(tmp_path / "a.ckpt")
    for dtype in dtypes:
        assert data[str(dtype)].dtype == dtype
        assert data[str(dtype)].to(torch.complex128).tolist() == [0, 1, 1]
    assert data["quantized"].is_quantized
    assert torch.equal(data["csr"].to_dense(), torch.eye(3))
    assert isinstance(data["parameter"], nn.Parameter)
