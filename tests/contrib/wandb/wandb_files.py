"""Reads the file that wandb writes offline: protocol buffers in LevelDB's log format, behind a header of 7 bytes."""

import json
import struct
from pathlib import Path

_BLOCK = 32768
_HEADER = 7


def records(path):
    """Each record of the file: a message of wandb's own protocol."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    assert content[:4] == b":W&B"
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
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pieces)
            pieces = b""
            yield record


def files(folder):
    return sorted(Path(folder).glob("wandb/*run-*/*.wandb"))


def rows(path):
    """The metrics, a dictionary for each call."""
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def config(path):
    """The hyperparameters: what was updated last counts."""
    found = {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind in ("config", "run"):
            updates = record.config.update if kind == "config" else record.run.config.update
            for item in updates:
                found[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    return found


def run_of(path):
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run")


def exit_code(path):
    return [record.exit.exit_code for record in records(path) if record.WhichOneof("record_type") == "exit"]
