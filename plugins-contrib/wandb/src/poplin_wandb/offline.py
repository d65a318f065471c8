"""Reads the file that wandb writes offline: protocol buffers in LevelDB's log format, behind a header of 7 bytes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poplin.utilities import import_library

_BLOCK = 32768
_HEADER = 7


def files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of the runs whose ``save_dir`` is ``folder``."""
    return sorted(Path(folder).glob("wandb/*run-*/*.wandb"))


def records(path: Path) -> Iterator[Any]:
    """Each whole record of a file: a message of wandb's own protocol.

    Raises:
        ValueError: it is no such file.
    """
    messages = import_library("wandb.proto.wandb_internal_pb2", "Reading a file of wandb's")
    content = path.read_bytes()
    if content[:4] != b":W&B":
        raise ValueError(f"{path} is no file of wandb's.")
    position, pieces = _HEADER, b""
    while position + _HEADER <= len(content):
        if _BLOCK - position % _BLOCK < _HEADER:  # too little room for another header: the next block
            position += _BLOCK - position % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + _HEADER])
        if kind == 0:
            break
        pieces += content[position + _HEADER : position + _HEADER + length]
        position += _HEADER + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = messages.Record()
            record.ParseFromString(pieces)
            pieces = b""
            yield record


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics, a dictionary for each call."""
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def exit_codes(path: Path) -> list[int]:
    """The exit code of the run, if it has ended."""
    return [record.exit.exit_code for record in records(path) if record.WhichOneof("record_type") == "exit"]
