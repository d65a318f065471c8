"""The format of a checkpoint file, version 1.

The file is what ``torch.save`` writes, so that ``torch.load(path, weights_only=True)`` reads it anywhere: a zip archive
with the user's dictionary in ``data.pkl`` and one record for each storage. Appended is one more record, the manifest
``poplin/manifest.json``: format version, names, shapes, dtypes and sizes of all tensors, and size and CRC-32 of all
records. It is written last; a file of ours without it is not whole.

Why CRC-32: torch computes it for each record anyway while it writes, so that it costs nothing; the manifest takes it
from the archive's directory. It finds what storage does to files (cut off, bits flipped, blocks exchanged); it is no
protection from an attacker, and need not be, since a safe load executes nothing. ``torch.load`` itself does not check
it. (zlib's crc32 reads 3.6 GB/s where this was measured, SHA-256 0.4.)
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any

import torch
from torch import Tensor

from poplin.errors import CheckpointError, DamagedCheckpointError

#: Version of the format; a reader accepts its own and earlier ones.
FORMAT_VERSION = 1
#: Name of the manifest inside the archive, below its root folder.
MANIFEST = "poplin/manifest.json"
#: The key under which a checkpoint carries what is Poplin's own (the states of precision and strategy).
RESERVED_KEY = "__poplin__"
#: Under this key stand the states of an object that has one on each rank, in a list.
PER_RANK_KEY = "__per_rank__"

_CHUNK = 1 << 20
#: What :mod:`zipfile` raises where an archive's bytes are not those that were written.
CORRUPT = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    #: Bytes of its values.
    nbytes: int
    #: The record in the archive that holds its storage; None where that isn't known (sparse tensors, subclasses).
    record: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of."""

    version: int
    poplin: str
    torch: str
    tensors: list[TensorEntry] = field(default_factory=list)
    #: Record → (bytes, CRC-32).
    records: dict[str, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        """As it stands in the file."""
        return json.dumps({"format": "poplin.checkpoint", **asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Read it back.

        Raises:
            CheckpointError: a later version wrote it; DamagedCheckpointError: it makes no sense.
        """
        try:
            data = json.loads(text)
            version = data["version"]
            if not isinstance(version, int) or data["format"] != "poplin.checkpoint":
                raise ValueError("not a manifest")
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpointError(f"{where}: its manifest can't be read ({error}).") from error
        if version > FORMAT_VERSION:
            raise CheckpointError(
                f"{where} has the checkpoint format {version}, written by poplin-core {data.get('poplin')}; this is "
                f"poplin-core {core_version()}, which reads up to format {FORMAT_VERSION}. Upgrade: "
                "pip install -U poplin-core"
            )
        try:
            return cls(
                version=version,
                poplin=data["poplin"],
                torch=data["torch"],
                tensors=[TensorEntry(**{**entry, "shape": tuple(entry["shape"])}) for entry in data["tensors"]],
                records={name: (int(size), int(crc)) for name, (size, crc) in data["records"].items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpointError(f"{where}: its manifest can't be read ({error!r}).") from error


def core_version() -> str:
    """Version of poplin-core."""
    import poplin

    return str(getattr(poplin, "__version__", "unknown"))


def walk_tensors(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Each tensor in nested dicts, lists and tuples with its path, in the order in which pickle meets them."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_tensors(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk_tensors(item, (*path, index))


def dotted(path: tuple[Any, ...]) -> str:
    """A path in a state as it stands in messages and manifests: ``models.g``."""
    return ".".join(str(key) for key in path)


# --- writing


def write_archive(checkpoint: dict[str, Any], file: IO[bytes]) -> None:
    """Write ``checkpoint`` and its manifest to ``file``, which must be empty and able to read and seek."""
    checkpoint = without_unused_bytes(checkpoint)
    torch.save(checkpoint, file)
    with zipfile.ZipFile(file, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        records = {info.filename.partition("/")[2]: (info.file_size, info.CRC) for info in archive.infolist()}
        manifest = Manifest(
            version=FORMAT_VERSION,
            poplin=core_version(),
            torch=str(torch.__version__),
            tensors=tensor_entries(checkpoint, records),
            records=records,
        )
        archive.writestr(f"{root}/{MANIFEST}", manifest.to_json())


def tensor_entries(checkpoint: Any, records: Mapping[str, tuple[int, int]] | None = None) -> list[TensorEntry]:
    """An entry for each tensor of ``checkpoint``.

    torch numbers the records in the order in which it meets storages; so do we. Whatever does not fit (a sparse
    tensor has several storages) ends the counting.
    """
    entries: list[TensorEntry] = []
    numbers: dict[int, int] = {}
    counting = records is not None
    for path, tensor in walk_tensors(checkpoint):
        record = None
        counting = counting and _is_plain(tensor)
        if counting and records is not None:
            storage = tensor.untyped_storage()
            name = f"data/{numbers.setdefault(storage._cdata, len(numbers))}"
            counting = name in records and records[name][0] == storage.nbytes()
            record = name if counting else None
        entries.append(
            TensorEntry(
                name=dotted(path),
                shape=() if tensor.is_nested else tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                nbytes=tensor.numel() * tensor.element_size(),
                record=record,
            )
        )
    return entries


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is a strided tensor with one storage, and not a subclass that may be something else inside."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.device.type != "meta"
    )


def without_unused_bytes(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """``checkpoint`` with copies for the tensors whose storage holds more than is saved of it.

    torch saves whole storages: ten numbers sliced from a gigabyte would take a gigabyte. It also refuses two dtypes on
    one storage. Tensors that view the same values (tied weights) keep sharing them.
    """
    storages: dict[int, _Usage] = {}
    for _, tensor in walk_tensors(checkpoint):
        if _is_plain(tensor):
            usage = storages.setdefault(tensor.untyped_storage()._cdata, _Usage(tensor))
            usage.add(tensor)
    if not any(usage.must_copy for usage in storages.values()):
        return checkpoint

    def replace(tensor: Tensor) -> Tensor:
        if not _is_plain(tensor):
            return tensor
        return storages[tensor.untyped_storage()._cdata].copied(tensor)

    result: dict[str, Any] = map_tensors(checkpoint, replace)
    return result


class _Usage:
    """Which parts of one storage are saved."""

    def __init__(self, tensor: Tensor) -> None:
        self.nbytes = tensor.untyped_storage().nbytes()
        self.views: dict[tuple[Any, ...], Tensor | None] = {}
        self.used = 0
        self.dtypes = {tensor.dtype}

    def add(self, tensor: Tensor) -> None:
        view = _view(tensor)
        if view not in self.views:
            self.views[view] = None
            self.used += tensor.numel() * tensor.element_size()
            self.dtypes.add(tensor.dtype)

    @property
    def must_copy(self) -> bool:
        return self.used < self.nbytes or len(self.dtypes) > 1

    def copied(self, tensor: Tensor) -> Tensor:
        if not self.must_copy:
            return tensor
        view = _view(tensor)
        copy = self.views[view]
        if copy is None:
            copy = self.views[view] = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy


def _view(tensor: Tensor) -> tuple[Any, ...]:
    flags = (tensor.is_conj(), tensor.is_neg())
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, *flags)


def map_tensors(value: Any, function: Any, done: dict[int, Any] | None = None) -> Any:
    """Nested plain dicts, lists and tuples with ``function`` applied to each tensor; containers are made anew.

    One container that stands in several places stays one.
    """
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    result: Any
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (dict, OrderedDict):
        result = type(value)()
        for key, item in value.items():
            result[key] = map_tensors(item, function, done)
        if type(value) is OrderedDict and hasattr(value, "_metadata"):
            result._metadata = value._metadata
    elif type(value) in (list, tuple):
        result = type(value)(map_tensors(item, function, done) for item in value)
    else:
        return value
    done[id(value)] = result
    return result


# --- reading


def read_manifest(archive: zipfile.ZipFile, where: str) -> Manifest | None:
    """The manifest in ``archive``, or None if Poplin did not write it."""
    for name in archive.namelist():
        if name.partition("/")[2] == MANIFEST:
            try:
                return Manifest.from_json(archive.read(name), where)
            except CORRUPT as error:
                raise DamagedCheckpointError(f"{where}: its manifest is corrupt ({error}).") from error
    return None


def verify(archive: zipfile.ZipFile, manifest: Manifest, where: str) -> None:
    """Compare every byte of ``archive`` with its manifest.

    Raises:
        DamagedCheckpointError: names what is corrupt or missing, by the names of the tensors in it.
    """
    root = archive.namelist()[0].partition("/")[0]
    bad: list[str] = []
    for name, (size, crc) in manifest.records.items():
        try:
            info = archive.getinfo(f"{root}/{name}")
            if (info.file_size, info.CRC) != (size, crc):
                raise zipfile.BadZipFile("not what the manifest says")
            with archive.open(info) as record:  # zipfile compares the CRC-32 when it reaches the end
                while record.read(_CHUNK):
                    pass
        except (KeyError, *CORRUPT) as error:
            tensors = [entry.name for entry in manifest.tensors if entry.record == name]
            what = ", ".join(tensors[:3]) + (", ..." if len(tensors) > 3 else "") if tensors else name
            bad.append(f"{what} ({'missing' if isinstance(error, KeyError) else 'corrupt'})")
    if bad:
        shown = "; ".join(bad[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise DamagedCheckpointError(
            f"{where} is damaged: its content is not what was written: {shown}. Nothing was loaded. "
            "Use an earlier checkpoint."
        )
