"""One tensor in a data file, in DCP's form: an archive of ``torch.save``. Found out on the way: where its values begin.

With that, and with the CRC-32 that torch computes while it writes, our reader needs neither unzip nor unpickle.
"""

from __future__ import annotations

import struct
import zlib
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from poplin.checkpoint.parts import bytes_of
from poplin.errors import CheckpointError

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_LOCAL = struct.Struct("<4s2B4HL2L2H")
#: Writes up to this size are remembered until the item is complete: all but the values of larger tensors.
_SMALL = 4096


class Written(NamedTuple):
    """Where an item stands in its file."""

    offset: int
    length: int
    data: int
    crc: int


def write_item(file: IO[bytes], position: int, tensor: Tensor) -> Written:
    """Append ``tensor`` to ``file``.

    Args:
        file: takes the bytes.
        position: how many it has already.
        tensor: on the CPU, in C order, alone in its storage.
    """
    stream: Any = _Remembering(file)
    torch.save(tensor, stream)
    if not tensor.numel():
        return Written(position, stream.position, position, 0)
    start, crc = _values_record(stream)
    if not torch.serialization.get_crc32_options():  # torch left it out
        crc = zlib.crc32(bytes_of(tensor))
    return Written(position, stream.position, position + start, crc)


class _Remembering:
    """Hands bytes on, counts them, and keeps what stands before and after the values."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.position = 0
        self._head, self._tail = bytearray(), bytearray()
        self._tail_start = 0
        self._kept = self._head

    def write(self, data: Any) -> int:
        size = len(data)
        self._file.write(data)
        self.position += size
        if size <= _SMALL:
            self._kept.extend(data)
        else:
            self._tail, self._tail_start = bytearray(), self.position
            self._kept = self._tail
        return size

    def flush(self) -> None:
        """Called by torch; the file is flushed once, at its end."""

    def at(self, position: int, size: int) -> bytes:
        """Bytes that were written at ``position``."""
        if position + size <= len(self._head):
            return bytes(self._head[position : position + size])
        first = position - self._tail_start
        if self._tail_start == 0 or first < 0 or first + size > len(self._tail):
            raise CheckpointError("torch.save wrote an archive in another order than expected. Please report this.")
        return bytes(self._tail[first : first + size])


def _values_record(stream: _Remembering) -> tuple[int, int]:
    """Where the record with the tensor's values begins in the archive, and its CRC-32."""
    end = _END.unpack(stream.at(stream.position - _END.size, _END.size))
    entries, position = end[4], end[6]
    if position == 0xFFFFFFFF or entries == 0xFFFF:  # beyond 4 GiB the archive has a wider directory before its end
        locator = stream.at(stream.position - _END.size - 20, 20)
        record = stream.at(struct.unpack("<Q", locator[8:16])[0], 56)
        entries, position = struct.unpack("<Q", record[32:40])[0], struct.unpack("<Q", record[48:56])[0]
    for _ in range(entries):
        entry = _ENTRY.unpack(stream.at(position, _ENTRY.size))
        crc, size, header = entry[9], entry[10], entry[18]
        name_length, extra_length, comment_length = entry[12], entry[13], entry[14]
        tail = stream.at(position + _ENTRY.size, name_length + extra_length)
        if tail[:name_length].partition(b"/")[2] == b"data/0":
            if header == 0xFFFFFFFF or size == 0xFFFFFFFF:
                header = _wide_header(tail[name_length:], entry[10], entry[11], header)
            local = _LOCAL.unpack(stream.at(header, _LOCAL.size))
            return header + _LOCAL.size + local[10] + local[11], crc
        position += _ENTRY.size + name_length + extra_length + comment_length
    raise CheckpointError("torch.save wrote an archive without values. Please report this.")


def _wide_header(extra: bytes, compressed: int, size: int, header: int) -> int:
    """The position of a local header from a zip64 extra field: only what did not fit stands there, in this order."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        if kind == 1:
            values = list(struct.unpack_from(f"<{length // 8}Q", extra, position + 4))
            for narrow in (size, compressed):
                if narrow == 0xFFFFFFFF:
                    values.pop(0)
            return int(values[0]) if header == 0xFFFFFFFF else header
        position += 4 + length
    return header
