"""Files of the safetensors format, read in slices and written tensor by tensor; no library is needed for either.

The format: eight bytes with the length of the header, the header (JSON: name → dtype, shape, first and last byte of the
values), and the values one after the other. There is nothing in it that could execute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

import torch
from torch import Tensor

from poplin.checkpoint.folder import folder_at
from poplin.checkpoint.folder_manifest import Chunk, StoredTensor
from poplin.checkpoint.folder_reader import read_boxes
from poplin.checkpoint.parts import bytes_of
from poplin.checkpoint.storage import Location
from poplin.checkpoint.stored import Request, StoredState
from poplin.errors import ArgumentValueError, DamagedCheckpointError

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
#: As in the library: no header is longer.
_MAX_HEADER = 100_000_000
#: In the header of a file that a checkpoint IO of its own wrote: more than a flat state dict, so it should read it.
FOREIGN_MARK = "poplin.reader"
#: How much of the beginning tells the format.
HEAD = _LENGTH_BYTES + 1


def is_safetensors(head: bytes) -> bool:
    """Whether a file that begins with ``head`` (:data:`HEAD` bytes) is of this format."""
    return len(head) >= HEAD and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= _MAX_HEADER


def safetensors_metadata(location: Location) -> dict[str, str]:
    """The strings in the header of a file of the format; empty where it is none."""
    head = location.head(_LENGTH_BYTES)
    length = int.from_bytes(head, "little")
    if len(head) < _LENGTH_BYTES or not 2 <= length <= _MAX_HEADER:
        return {}
    try:
        header = json.loads(location.head(_LENGTH_BYTES + length)[_LENGTH_BYTES:])
        return {str(key): str(value) for key, value in header.get("__metadata__", {}).items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


class SafetensorsState(StoredState):
    """A file of the format: its tensors under their names, as a flat state dict."""

    def __init__(self, location: Location) -> None:
        parent, _, self._file = location.text.rpartition("/")
        self._folder = folder_at(f"{parent}/" if parent.endswith(("/", ":")) or not parent else parent)
        size = self._folder.sizes().get(self._file, 0)
        with self._folder.open(self._file) as file:
            self._tensors = _tensors(file, self._file, size, location.text)
        tree: dict[str, Any] = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in self._tensors.items()
        }
        super().__init__(location.text, tree, {id(empty): name for name, empty in tree.items()})

    def read(self, requests: Iterable[Request]) -> None:
        """Read slices of tensors; the format has nothing to compare the values with."""
        read_boxes(self._folder, self._tensors, requests)


def _tensors(file: IO[bytes], name: str, size: int, where: str) -> dict[str, StoredTensor]:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    begin = _LENGTH_BYTES + length
    try:
        if begin > size:
            raise ValueError("it is shorter than its header")
        header = json.loads(_exactly(file, length))
        tensors = {
            str(key): _tensor(entry, name, begin, size) for key, entry in header.items() if key != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"{where} is damaged: its safetensors header can't be read ({error}). Nothing was loaded."
        ) from error
    return tensors


def _tensor(entry: Mapping[str, Any], file: str, begin: int, size: int) -> StoredTensor:
    shape = tuple(int(extent) for extent in entry["shape"])
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"the dtype {entry['dtype']} is unknown")
    dtype = _DTYPES[entry["dtype"]]
    first, last = (int(position) for position in entry["data_offsets"])
    nbytes = math.prod(shape) * dtype.itemsize
    if any(extent < 0 for extent in shape) or first < 0 or last - first != nbytes or begin + last > size:
        raise ValueError("a tensor reaches beyond the file, or its size does not fit its shape")
    chunk = Chunk(file, begin + first, nbytes, begin + first, None, (0,) * len(shape), shape)
    return StoredTensor(shape, dtype, (chunk,))


def _exactly(file: IO[bytes], length: int) -> bytes:
    pieces = []
    while length > 0 and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def write_safetensors(
    file: IO[bytes],
    entries: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    values: Callable[[str], Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file, one tensor at a time.

    Args:
        file: takes the bytes.
        entries: name → (shape, dtype), in the order in which they are written.
        values: gives the values of a name: on the CPU, in C order. They are dropped before the next are asked for.
        metadata: more strings for the header; readers ignore the keys that they don't know.

    Raises:
        ArgumentValueError: a dtype that the format doesn't know.
    """
    unknown = {str(dtype) for _, dtype in entries.values() if dtype not in _NAMES}
    if unknown:
        raise ArgumentValueError(f"The safetensors format knows no {', '.join(sorted(unknown))}. Write a torch file.")
    header: dict[str, Any] = {"__metadata__": {**(metadata or {}), "format": "pt"}}
    position = 0
    for name, (shape, dtype) in entries.items():
        end = position + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # the values begin at a multiple of eight
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
    file.write(text)
    for name in entries:
        tensor = values(name)
        if tensor.numel():
            file.write(bytes_of(tensor))
