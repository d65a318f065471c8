"""One file from a folder: without starting anything, and without needing the whole in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from poplin.checkpoint.checkpoint_io import StoragePath
from poplin.checkpoint.folder import folder_at
from poplin.checkpoint.folder_state import open_folder
from poplin.checkpoint.format import RESERVED_KEY, dotted, map_tensors, walk_tensors
from poplin.checkpoint.safetensors_file import write_safetensors
from poplin.checkpoint.storage import checked_path, locate
from poplin.checkpoint.stored import Request, StoredState
from poplin.checkpoint.torch_io import TorchCheckpointIO
from poplin.errors import ArgumentValueError, CheckpointError

#: Called with the bytes that are done and the bytes that there are.
Progress = Callable[[int, int], None]

#: Tensors below this size stay in memory.
_SMALL = 1 << 20
#: Free space beyond what the files will take, so that the disk isn't filled to the last byte.
_RESERVE = 64 << 20


def consolidate(
    folder: StoragePath,
    output: StoragePath | None = None,
    *,
    key: str | None = None,
    weights_only: bool = True,
    progress: Progress | None = None,
    stored: StoredState | None = None,
) -> str:
    """Make one file of a sharded checkpoint: ours, one of torch.distributed.checkpoint, or one of Lightning's.

    Values are written through files on the disk of the output, so that memory is needed for one tensor at a time only.

    Args:
        folder: a local path or an fsspec URL.
        output: the file; a name that ends in ``.safetensors`` gets that format, with the tensors under their dotted
            names, any other that of ``torch.save``, as ``Fabric.save`` writes it. By default the folder's name with
            ``.consolidated`` after it.
        key: only what stands under this key: ``"model"`` gives a plain state dict, for ``load_raw``.
        weights_only: False may execute what is in the folder.
        progress: told how far it is.
        stored: what another checkpoint IO has read at ``folder``, if it is in a format of that one.

    Returns:
        The path of the file.

    Raises:
        CheckpointNotFoundError, DamagedCheckpointError, UnsafeCheckpointError: the folder can't be read.
        CheckpointError: the file can't be written; what stood there before still stands.
        ArgumentValueError: there is no such key.
    """
    text = checked_path(folder)
    target = checked_path(output) if output is not None else f"{text.rstrip('/')}.consolidated"
    if stored is None:
        stored = open_folder(folder_at(folder), weights_only)
    part: Any = {name: value for name, value in stored.tree.items() if name != RESERVED_KEY or key is None}
    if key is not None:
        if not isinstance(part.get(key), Mapping):
            raise ArgumentValueError(
                f"{text} has no {key!r} that could be written alone. It has: {', '.join(map(str, stored.tree))}."
            )
        part = dict(part[key])
    reading = _Reading(stored, part, progress)
    if target.endswith(".safetensors"):
        _to_safetensors(reading, part, target)
    else:
        _to_torch(reading, part, target)
    return target


class _Reading:
    """Reads tensors one by one, and says how far it is."""

    def __init__(self, stored: StoredState, part: Any, progress: Progress | None) -> None:
        self.stored, self._progress = stored, progress
        self.wanted: dict[str, Tensor] = {}
        for _, empty in walk_tensors(part):
            name = stored.name_of(empty)
            if name is not None:
                self.wanted.setdefault(name, empty)
        self.total = sum(_nbytes(empty) for empty in self.wanted.values())
        self._done = 0

    def into(self, name: str, values: Tensor) -> Tensor:
        self.stored.read([Request(name, (0,) * values.dim(), values)])
        self._done += _nbytes(values)
        if self._progress is not None:
            self._progress(min(self._done, self.total), self.total)
        return values


def _to_safetensors(reading: _Reading, part: Any, target: str) -> None:
    place = {dotted(path): empty for path, empty in walk_tensors(part)}
    loose = [name for name, tensor in place.items() if reading.stored.name_of(tensor) is None]
    if loose:
        raise CheckpointError(f"The safetensors format can't hold {', '.join(loose[:5])}: write a torch file.")
    if not place:
        raise CheckpointError(f"There is no tensor in {reading.stored.where} to write.")

    def values(name: str) -> Tensor:
        empty = place[name]
        stored_name = reading.stored.name_of(empty)
        assert stored_name is not None
        return reading.into(stored_name, torch.empty(empty.shape, dtype=empty.dtype))

    location = locate(target)
    if location.is_folder() or not location.is_free():
        raise CheckpointError(f"{target} is a folder, or not free for a file. Nothing was written.")
    entries = {name: (tuple(empty.shape), empty.dtype) for name, empty in place.items()}
    with _errors_named(target), location.write() as file:
        write_safetensors(file, entries, values)


def _to_torch(reading: _Reading, part: Any, target: str) -> None:
    with _errors_named(target), _scratch(target, reading.total) as folder:
        real = {name: reading.into(name, _room(empty, folder)) for name, empty in reading.wanted.items()}

        def value(tensor: Tensor) -> Tensor:
            name = reading.stored.name_of(tensor)
            return tensor if name is None else real[name]

        TorchCheckpointIO().save_checkpoint(map_tensors(part, value), target)


@contextlib.contextmanager
def _scratch(target: str, nbytes: int) -> Iterator[Path]:
    """A folder beside the output, on whose disk there is room."""
    beside = None if "://" in target else next(p for p in Path(target).parents if p.is_dir())
    with tempfile.TemporaryDirectory(prefix=".poplin-consolidate-", dir=beside) as name:
        free = shutil.disk_usage(name).free
        if free < 2 * nbytes + _RESERVE:
            raise CheckpointError(
                f"There are {free >> 20} MiB free where {target} is to be written, and {(2 * nbytes) >> 20} MiB are "
                "needed: the values, and the file made of them. A .safetensors file needs half of that."
            )
        yield Path(name)


def _room(empty: Tensor, folder: Path) -> Tensor:
    """A tensor to read into; a large one lies in a file that has no name any more, and takes no memory of its own."""
    nbytes = _nbytes(empty)
    if nbytes < _SMALL:
        return torch.empty(empty.shape, dtype=empty.dtype)
    descriptor, path = tempfile.mkstemp(dir=folder)
    try:
        os.ftruncate(descriptor, nbytes)
        storage = torch.UntypedStorage.from_file(path, shared=True, nbytes=nbytes)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return torch.empty(0, dtype=empty.dtype).set_(storage, 0, empty.shape)  # type: ignore[call-overload,no-any-return]


@contextlib.contextmanager
def _errors_named(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{target} could not be written: {error.strerror or error}.") from error


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def progress_bar(stream: IO[str]) -> Progress:
    """A line on ``stream`` that says how far it is: rewritten on a terminal, each tenth on a line elsewhere."""
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 if not total else done * 100 // total
        step = 1 if stream.isatty() else 10
        if percent // step == shown:
            return
        shown = percent // step
        end = "\r" if stream.isatty() and percent < 100 else "\n"
        stream.write(f"{percent:3} %  {done / 1e6:,.1f} of {total / 1e6:,.1f} MB{end}")
        stream.flush()

    return show
