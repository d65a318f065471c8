"""What ranks tell each other before the data moves: what they are about to do, and what will come.

A frame has a fixed size, so that ranks that are about to do different things can still read each other's.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from poplin.errors import CollectiveError

#: Bytes of a frame that says what a rank is about to do.
INTENT_BYTES = 256
#: Bytes of a frame that goes ahead of a broadcast; small objects travel in it.
HEADER_BYTES = 1024
_MAGIC = b"Pop1"
_PREFIX = len(_MAGIC) + 1 + 4
#: What is larger than this leaves the pickle of an object and travels as a tensor, without a copy.
OUT_OF_BAND_BYTES = 1 << 16

#: all_gather_into_tensor and reduce_scatter_tensor have new names since torch 2.13, and the old ones warn.
all_gather_flat: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_flat: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def intent_frame(what: str) -> Tensor:
    """``what`` as a uint8 tensor of :data:`INTENT_BYTES`; a long text is cut, and a digest tells it from its like."""
    data = what.encode()
    if len(data) > INTENT_BYTES:
        digest = hashlib.blake2b(data, digest_size=8).hexdigest().encode()
        data = data[: INTENT_BYTES - len(digest) - 2] + b"~" + digest
    return torch.frombuffer(bytearray(data.ljust(INTENT_BYTES, b"\0")), dtype=torch.uint8)


def read_intents(frames: Tensor, count: int) -> list[str]:
    """The texts in ``count`` frames that stand one after the other in a CPU tensor."""
    data = bytes(frames.numpy())
    parts = (data[start : start + INTENT_BYTES] for start in range(0, count * INTENT_BYTES, INTENT_BYTES))
    return [part.rstrip(b"\0").decode(errors="replace") for part in parts]


def header_frame(kind: bytes, content: bytes) -> Tensor:
    """The frame ahead of a broadcast: one letter for what will come, and a few bytes about it."""
    frame = _MAGIC + kind + len(content).to_bytes(4, "little") + content
    return torch.frombuffer(bytearray(frame.ljust(HEADER_BYTES, b"\0")), dtype=torch.uint8)


def read_header(frame: Tensor) -> tuple[bytes, bytes]:
    """Letter and content of a header.

    Raises:
        CollectiveError: it isn't one.
    """
    data = bytes(frame.numpy())
    if not data.startswith(_MAGIC):
        raise CollectiveError(
            "A broadcast received something that is no broadcast of Poplin's: the ranks are in different collectives, "
            "or differ in who sends (src). Every rank must call the same collectives in the same order; "
            "POPLIN_DEBUG=1 checks each one."
        )
    kind = data[len(_MAGIC) : len(_MAGIC) + 1]
    length = int.from_bytes(data[len(_MAGIC) + 1 : _PREFIX], "little")
    return kind, data[_PREFIX : _PREFIX + length]


def fits_header(content: bytes) -> bool:
    """Whether ``content`` has room in a header."""
    return len(content) <= HEADER_BYTES - _PREFIX


def tensor_meta(tensor: Tensor) -> dict[str, Any]:
    """What a receiver must know to make room for ``tensor``. JSON-able."""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "on_device": tensor.device.type != "cpu",
        "grad": tensor.requires_grad and tensor.is_leaf,
    }


def pack_json(value: Any) -> bytes:
    """``value`` as bytes."""
    return json.dumps(value).encode()


def read_json(data: bytes) -> Any:
    """What :func:`pack_json` was given."""
    return json.loads(data)


def make_room(meta: dict[str, Any], device: torch.device) -> Tensor:
    """An uninitialised tensor as ``meta`` says; on ``device`` if it comes from a device, else on the CPU."""
    dtype = getattr(torch, meta["dtype"])
    return torch.empty(meta["shape"], dtype=dtype, device=device if meta["on_device"] else "cpu")


def is_plain(obj: Any) -> bool:
    """Whether ``obj`` is a tensor that can be sent as its bare bytes."""
    return (
        type(obj) is Tensor
        and obj.layout is torch.strided
        and not obj.is_quantized
        and not obj.is_nested
        and obj.device.type != "meta"
        and not obj.__dict__
    )


class _Pickler(pickle.Pickler):
    """Takes large tensors, and those on devices, out of the pickle."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not is_plain(obj) or obj.requires_grad:
            return None
        if obj.device.type == "cpu" and obj.nbytes < OUT_OF_BAND_BYTES:
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> Tensor:
        tensor: Tensor = self.tensors[pid]
        return tensor


def pack(obj: Any) -> tuple[bytes, list[Tensor]]:
    """``obj`` as bytes, and the tensors that travel beside them."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(obj)
    meta = json.dumps([tensor_meta(tensor) for tensor in pickler.tensors]).encode()
    return len(meta).to_bytes(4, "little") + meta + buffer.getvalue(), pickler.tensors


def tensors_to_come(packed: bytes) -> list[dict[str, Any]]:
    """The :func:`tensor_meta` of each tensor that travels beside ``packed``."""
    metas: list[dict[str, Any]] = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    return metas


def unpack(packed: bytes, tensors: list[Tensor]) -> Any:
    """What :func:`pack` was given."""
    start = 4 + int.from_bytes(packed[:4], "little")
    return _Unpickler(io.BytesIO(packed[start:]), tensors).load()
