"""What ranks tell each other before the data moves: what they are about to do, and what will come.

A frame has a fixed size, so that ranks that are about to do different things can still read each other's.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from poplin.errors import CollectiveError

#: Bytes in which a rank says what it is about to do.
INTENT_BYTES = 256
#: Bytes of the frame that holds them; a small tensor to be gathered travels in the rest.
AGREEMENT_BYTES = 2048
#: Bytes of a frame that goes ahead of a broadcast; small objects and tensors travel in it.
HEADER_BYTES = 8192
_MAGIC = b"Pop1"
_PREFIX = len(_MAGIC) + 1 + 4
#: What is larger than this leaves the pickle of an object and travels as a tensor, without a copy.
OUT_OF_BAND_BYTES = 1 << 16

#: all_gather_into_tensor and reduce_scatter_tensor have new names since torch 2.13, and the old ones warn.
all_gather_flat: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_flat: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

#: dtypes that every backend takes; others travel as bytes where nothing is computed.
_SENT_AS_THEY_ARE = frozenset(
    (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    )
)
#: dtypes that numpy knows too.
_OF_NUMPY = _SENT_AS_THEY_ARE - {torch.bfloat16}


def agreement_frame(what: str) -> Tensor:
    """A uint8 tensor of :data:`AGREEMENT_BYTES` that begins with ``what``; a long text is cut, and keeps a digest."""
    data = what.encode()
    if len(data) > INTENT_BYTES:
        digest = hashlib.blake2b(data, digest_size=8).hexdigest().encode()
        data = data[: INTENT_BYTES - len(digest) - 2] + b"~" + digest
    return torch.frombuffer(bytearray(data.ljust(AGREEMENT_BYTES, b"\0")), dtype=torch.uint8)


def fits_agreement(tensor: Tensor) -> bool:
    """Whether there is room for ``tensor`` behind the text."""
    return tensor.nbytes <= AGREEMENT_BYTES - INTENT_BYTES


def read_intents(frames: Tensor) -> list[str]:
    """The texts in frames, one a row, on the CPU."""
    return [bytes(frame[:INTENT_BYTES].numpy()).rstrip(b"\0").decode(errors="replace") for frame in frames]


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


def fits_header(size: int) -> bool:
    """Whether a header has room for so many bytes."""
    return size <= HEADER_BYTES - _PREFIX


def as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor of any dtype as uint8, in the same memory."""
    return tensor.view(-1).view(torch.uint8)


def small_tensor(meta: bytes, tensor: Tensor) -> bytes:
    """A tensor and its :class:`TensorMeta`, packed, for a header."""
    values = tensor if tensor.dtype in _OF_NUMPY else as_bytes(tensor)
    return len(meta).to_bytes(4, "little") + meta + values.numpy().tobytes()


def read_small_tensor(content: bytes, device: torch.device) -> Tensor:
    """What :func:`small_tensor` was given."""
    end = 4 + int.from_bytes(content[:4], "little")
    meta = TensorMeta.read(content[4:end])
    if end == len(content):
        tensor = meta.make_room(device)
    else:
        tensor = torch.frombuffer(bytearray(content[end:]), dtype=meta.dtype).view(meta.shape)
        tensor = tensor.to(device) if meta.on_device else tensor
    return tensor.requires_grad_() if meta.grad else tensor


class TensorMeta(NamedTuple):
    """What a receiver must know to make room for a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    on_device: bool
    grad: bool

    @classmethod
    def read(cls, data: bytes) -> TensorMeta:
        """What :func:`pack_meta` made."""
        name, on_device, grad, *shape = data.decode().split(" ")
        return cls(getattr(torch, name), tuple(map(int, shape)), on_device == "1", grad == "1")

    def make_room(self, device: torch.device) -> Tensor:
        """An uninitialised tensor; on ``device`` if it comes from a device, else on the CPU."""
        return torch.empty(self.shape, dtype=self.dtype, device=device if self.on_device else None)


def is_plain(obj: Any) -> bool:
    """Whether ``obj`` is a tensor that can be sent as its bare bytes."""
    return (
        type(obj) is Tensor
        and obj.layout is torch.strided
        and not (obj.is_quantized or obj.is_nested or obj.is_meta)
        and not obj.__dict__
    )


def pack_meta(tensor: Tensor) -> bytes:
    """The :class:`TensorMeta` of ``tensor``, as bytes."""
    grad = tensor.requires_grad and tensor.is_leaf
    return _packed(tensor.dtype, tensor.shape, tensor.device.type != "cpu", grad)


@functools.lru_cache(maxsize=1024)
def _packed(dtype: torch.dtype, shape: torch.Size, on_device: bool, grad: bool) -> bytes:
    numbers = (on_device, grad, *shape)
    return f"{str(dtype).removeprefix('torch.')} {' '.join(map(str, map(int, numbers)))}".encode()


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
    meta = b"|".join(pack_meta(tensor) for tensor in pickler.tensors)
    return len(meta).to_bytes(4, "little") + meta + buffer.getvalue(), pickler.tensors


def tensors_to_come(packed: bytes) -> list[TensorMeta]:
    """What travels beside ``packed``."""
    metas = packed[4 : 4 + int.from_bytes(packed[:4], "little")]
    return [TensorMeta.read(meta) for meta in metas.split(b"|")] if metas else []


def unpack(packed: bytes, tensors: list[Tensor]) -> Any:
    """What :func:`pack` was given."""
    start = 4 + int.from_bytes(packed[:4], "little")
    return _Unpickler(io.BytesIO(packed[start:]), tensors).load()


def bare(tensor: Tensor) -> Tensor:
    """The values, contiguous, without a graph and without pending conjugation."""
    values = tensor.detach()
    if values.is_conj() or values.is_neg():
        values = values.resolve_conj().resolve_neg()
    return values.contiguous()


def flat(tensor: Tensor) -> Tensor:
    """A contiguous tensor as one dimension; bytes, where backends may not know the dtype. Shares the memory."""
    flat = tensor.view(-1)
    return flat if flat.dtype in _SENT_AS_THEY_ARE else flat.view(torch.uint8)
