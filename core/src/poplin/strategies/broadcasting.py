"""Broadcasting an object: a small header goes ahead, so that the receivers need to know nothing.

The header is one letter for what will come, and a few bytes about it:

- ``S``: a small tensor, in the header itself
- ``T``: shape and dtype of a tensor, which follows
- ``O``: a pickled object, in the header itself
- ``L``: the size of a pickled object, which follows
- ``E``: the sender couldn't pickle the object; the message

After ``O`` and ``L`` follow the tensors that were taken out of the pickle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

import poplin.strategies.frames as frames
from poplin.errors import CollectiveError

if TYPE_CHECKING:
    from poplin.strategies.collective_log import Call
    from poplin.strategies.communicator import Communicator


def send(via: Communicator, obj: Any, src: int, call: Call) -> None:
    """Send ``obj`` to all ranks, on the rank ``src``.

    Raises:
        CollectiveError: it can't be pickled; on the receivers too.
    """
    if frames.is_plain(obj):
        meta = frames.pack_meta(obj)
        if frames.fits_header(len(meta) + obj.nbytes + 4):
            _send_frame(via, b"S", frames.small_tensor(meta, frames.bare(obj).cpu()), src, call)
            return
        if frames.fits_header(len(meta)):
            _send_frame(via, b"T", meta, src, call)
            _send_tensor(via, obj, src, call)
            return
    try:
        packed, tensors = frames.pack(obj)
    except Exception as error:
        reason = f"rank {src} could not pickle a {type(obj).__name__}: {type(error).__name__}: {error}"
        _send_frame(via, b"E", reason.encode()[:4000], src, call)
        raise CollectiveError(f"Nothing was broadcast: {reason}") from error
    if frames.fits_header(len(packed)):
        _send_frame(via, b"O", packed, src, call)
    else:
        _send_frame(via, b"L", len(packed).to_bytes(8, "little"), src, call)
        _send_bytes(via, packed, src, call)
    for tensor in tensors:
        _send_tensor(via, tensor, src, call)


def receive(via: Communicator, src: int, call: Call) -> Any:
    """Receive what the rank ``src`` sends, on every other rank.

    Raises:
        CollectiveError: ``src`` could not pickle it, this rank can't unpickle it, or it is no broadcast.
    """
    frame = torch.empty(frames.HEADER_BYTES, dtype=torch.uint8, device=via.control_device(call.view))
    _broadcast(via, frame, src, call)
    kind, content = frames.read_header(frame.cpu())
    if kind == b"E":
        raise CollectiveError(f"Nothing was broadcast: {content.decode(errors='replace')}")
    if kind == b"S":
        return frames.read_small_tensor(content, via.device)
    if kind == b"T":
        return _receive_tensor(via, frames.TensorMeta.read(content), src, call)
    packed = content
    if kind == b"L":
        size = int.from_bytes(content, "little")
        buffer = torch.empty(size, dtype=torch.uint8, device=via.control_device(call.view))
        _broadcast(via, buffer, src, call)
        packed = bytes(buffer.cpu().numpy())
    tensors = [_receive_tensor(via, meta, src, call) for meta in frames.tensors_to_come(packed)]
    try:
        return frames.unpack(packed, tensors)
    except Exception as error:
        raise CollectiveError(
            f"Rank {via.rank} could not unpickle what rank {src} broadcast: {type(error).__name__}: {error}"
        ) from error


def _send_frame(via: Communicator, kind: bytes, content: bytes, src: int, call: Call) -> None:
    _broadcast(via, frames.header_frame(kind, content).to(via.control_device(call.view)), src, call)


def _send_bytes(via: Communicator, data: bytes, src: int, call: Call) -> None:
    _broadcast(via, torch.frombuffer(bytearray(data), dtype=torch.uint8).to(via.control_device(call.view)), src, call)


def _send_tensor(via: Communicator, tensor: Tensor, src: int, call: Call) -> None:
    part = via.staged(frames.bare(tensor), call.view)
    _broadcast(via, frames.flat(part), src, call)


def _receive_tensor(via: Communicator, meta: frames.TensorMeta, src: int, call: Call) -> Tensor:
    tensor = meta.make_room(via.device)
    staged = via.staged(tensor, call.view)
    _broadcast(via, frames.flat(staged), src, call)
    if staged is not tensor:
        tensor.copy_(staged)
    return tensor.requires_grad_() if meta.grad else tensor


def _broadcast(via: Communicator, tensor: Tensor, src: int, call: Call) -> None:
    if tensor.numel():
        via.run(call, lambda: dist.broadcast(tensor, src=src, group=call.view.group))
