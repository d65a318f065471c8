"""Reading tensors of a folder: box by box, and nothing that isn't asked for."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from poplin.checkpoint.folder import Folder
from poplin.checkpoint.folder_manifest import Chunk, StoredTensor
from poplin.checkpoint.parts import bytes_of
from poplin.checkpoint.stored import Request
from poplin.errors import CheckpointError, DamagedCheckpointError, UnsafeCheckpointError

#: Bytes that are read at once: what is not asked for of a part takes no more memory than this.
BLOCK = 4 << 20


class _Copy(NamedTuple):
    """What of one stored box goes where: in each dimension the first index in the box, and in the target, and how many.

    Whole dimensions only differ by extent; so each is a slice.
    """

    source: tuple[slice, ...]
    target: Tensor


def read_boxes(folder: Folder, tensors: Mapping[str, StoredTensor], requests: Iterable[Request]) -> None:
    """Read what is asked for; each file is opened once, and read from front to back.

    Raises:
        DamagedCheckpointError: values are not those that were written; CheckpointError: a file can't be read.
    """
    by_file: dict[str, dict[tuple[str, int], tuple[str, Chunk, torch.dtype, list[_Copy]]]] = {}
    for request in requests:
        tensor = tensors[request.name]
        for number, chunk in enumerate(tensor.chunks):
            copy = _overlap(chunk, request)
            if copy is not None:
                entries = by_file.setdefault(chunk.file, {})
                entry = entries.setdefault((request.name, number), (request.name, chunk, tensor.dtype, []))
                entry[3].append(copy)
    for file_name, entries in by_file.items():
        with errors_named(folder, file_name), folder.open(file_name) as file:
            for name, chunk, dtype, copies in sorted(entries.values(), key=lambda entry: entry[1].offset):
                _read_chunk(file, name, chunk, dtype, copies, f"{folder.text}: {file_name}")


@contextlib.contextmanager
def errors_named(folder: Folder, file_name: str) -> Any:
    """Turn what storage raises into our errors."""
    try:
        yield
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise DamagedCheckpointError(
            f"{folder.text} is damaged: {file_name} is missing. Use another checkpoint."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{folder.text}: {file_name} could not be read: {error.strerror or error}.") from error


@contextlib.contextmanager
def load_errors_named(what: str) -> Iterator[None]:
    """Turn what torch.load raises into our errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    except (CheckpointError, OSError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        told = str(error)
        if "weights_only" in told or "Unsupported" in told or "GLOBAL" in told:
            blocked = next((line for line in told.splitlines() if "GLOBAL" in line or "nsupported" in line), "")
            raise UnsafeCheckpointError(
                f"{what} holds what a safe load refuses, because reading it could execute code: {blocked.strip()[:200]}"
                " Nothing was loaded. If you trust whoever made the checkpoint, pass weights_only=False."
            ) from error
        raise DamagedCheckpointError(f"{what} can't be read: {told[:200]}. Nothing was loaded.") from error
    except Exception as error:  # a corrupted pickle raises whatever its bytes happen to mean
        raise DamagedCheckpointError(
            f"{what} can't be read: {type(error).__name__}: {str(error)[:200]}. Nothing was loaded."
        ) from error


def _overlap(chunk: Chunk, request: Request) -> _Copy | None:
    """What of the stored box ``chunk`` is asked for."""
    source, target = [], []
    for start, size, wanted, extent in zip(
        chunk.offsets, chunk.sizes, request.offsets, request.into.shape, strict=True
    ):
        first, last = max(start, wanted), min(start + size, wanted + extent)
        if last <= first:
            return None
        source.append(slice(first - start, last - start))
        target.append(slice(first - wanted, last - wanted))
    return _Copy(tuple(source), request.into[tuple(target)])


def _read_chunk(
    file: IO[bytes], name: str, chunk: Chunk, dtype: torch.dtype, copies: Sequence[_Copy], where: str
) -> None:
    if chunk.data is None:
        _read_archive(file, name, chunk, dtype, copies, where)
        return
    if not math.prod(chunk.sizes):
        return
    file.seek(chunk.data)
    direct = _covered_whole(chunk, dtype, copies)
    crc = 0
    if direct is not None:
        for piece in _pieces(bytes_of(direct)):
            crc = zlib.crc32(_fill(file, piece, name, where), crc)
    else:
        for start, block in _blocks(chunk.sizes, dtype):
            crc = zlib.crc32(_fill(file, bytes_of(block), name, where), crc)
            _copy_block(block, start, copies)
    if chunk.crc is not None and crc != chunk.crc:
        raise DamagedCheckpointError(
            f"{where}: the values of {name} are corrupt: not what was written. Use another checkpoint."
        )


def _covered_whole(chunk: Chunk, dtype: torch.dtype, copies: Sequence[_Copy]) -> Tensor | None:
    """The target, if the one copy is of the whole box and the target's memory can take the bytes as they come."""
    if len(copies) != 1:
        return None
    target = copies[0].target
    whole = tuple(target.shape) == chunk.sizes and target.is_contiguous() and target.dtype == dtype
    return target if whole and target.device.type == "cpu" else None


def _blocks(sizes: tuple[int, ...], dtype: torch.dtype) -> Iterable[tuple[int, Tensor]]:
    """Buffers for the rows of a box, some at a time: (first row, buffer)."""
    if not sizes:
        yield 0, torch.empty((), dtype=dtype)
        return
    row = max(1, math.prod(sizes[1:]) * dtype.itemsize)
    rows = min(sizes[0], max(1, BLOCK // row))
    buffer = torch.empty((rows, *sizes[1:]), dtype=dtype)
    for start in range(0, sizes[0], rows):
        yield start, buffer[: min(rows, sizes[0] - start)]


def _copy_block(block: Tensor, start: int, copies: Sequence[_Copy]) -> None:
    for source, target in copies:
        if not source:
            target.copy_(block)
            continue
        first, last = max(source[0].start, start), min(source[0].stop, start + block.shape[0])
        if first < last:
            rows = block[(slice(first - start, last - start), *source[1:])]
            target[first - source[0].start : last - source[0].start].copy_(rows)


def _pieces(view: memoryview) -> Iterable[memoryview]:
    for start in range(0, len(view), BLOCK):
        yield view[start : start + BLOCK]


def _fill(file: Any, view: memoryview, name: str, where: str) -> memoryview:
    position = 0
    while position < len(view):
        count = file.readinto(view[position:])
        if not count:
            raise DamagedCheckpointError(f"{where} is cut off in the middle of {name}. Use another checkpoint.")
        position += count
    return view


def _read_archive(
    file: IO[bytes], name: str, chunk: Chunk, dtype: torch.dtype, copies: Sequence[_Copy], where: str
) -> None:
    """A part that DCP wrote: an archive of ``torch.save``, read without executing anything."""
    try:
        file.seek(chunk.offset)
        section: Any = _Section(file, chunk.offset, chunk.length)
        values = torch.load(section, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a corrupted pickle raises whatever its bytes happen to mean
        raise DamagedCheckpointError(
            f"{where}: the values of {name} can't be read ({type(error).__name__}: {str(error)[:200]}). "
            "Use another checkpoint."
        ) from error
    if not isinstance(values, Tensor) or tuple(values.shape) != chunk.sizes or values.dtype != dtype:
        found = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise DamagedCheckpointError(
            f"{where}: {name} is {found} there, and {dtype} {chunk.sizes} in the metadata. Use another checkpoint."
        )
    for source, target in copies:
        target.copy_(values[source])


class _Section(io.RawIOBase):
    """A section of a file, as a file."""

    def __init__(self, file: IO[bytes], offset: int, length: int) -> None:
        super().__init__()
        self._file, self._offset, self._length = file, offset, length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._position, 2: self._length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._length - self._position)]
        if not len(view):
            return 0
        self._file.seek(self._offset + self._position)
        reader: Callable[[Any], int | None] = self._file.readinto  # type: ignore[attr-defined]
        count = reader(view) or 0
        self._position += count
        return count
