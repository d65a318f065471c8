"""Collectives of torch_xla's replicas. Data on the CPU goes by the device, and comes back."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import Tensor

from poplin.errors import ArgumentValueError, CollectiveError
from poplin.strategies import parse_reduce_op
from poplin_tpu import runtime

#: Name of a reduction → torch_xla's.
_REDUCTIONS = {"sum": "sum", "min": "min", "max": "max", "product": "mul", "prod": "mul", "and": "and", "or": "or"}


def all_gather(tensor: Tensor, sync_grads: bool) -> Tensor:
    """``tensor`` of every replica, in a new first dimension.

    Raises:
        CollectiveError: shapes or dtypes differ.
    """
    _compare("all_gather", (tuple(tensor.shape), str(tensor.dtype)))
    row = _on_device(tensor).unsqueeze(0)
    if sync_grads:
        gathered: Tensor = runtime.xla("core.functions").all_gather(row, dim=0)
    else:
        gathered = runtime.xla("core.xla_model").all_gather(row.detach(), dim=0)
    return gathered.to(tensor.device)


def all_reduce(tensor: Tensor, reduce_op: Any) -> Tensor:
    """Reduce over replicas in place; only the mean of integers is a new tensor.

    Raises:
        ArgumentValueError: a reduction that torch_xla has not.
    """
    reduction = parse_reduce_op(reduce_op)
    whole = reduction.mean and not (tensor.is_floating_point() or tensor.is_complex())
    kind = "sum" if reduction.mean else _REDUCTIONS.get(reduction.name)
    if kind is None:
        raise ArgumentValueError(
            f"reduce_op={reduce_op!r}: torch_xla's replicas reduce by mean, {', '.join(sorted(set(_REDUCTIONS)))}."
        )
    scale = 1.0 / runtime.xla("runtime").world_size() if reduction.mean else 1.0
    data = _on_device(tensor.float() if whole else tensor.detach())
    reduced: Tensor = runtime.xla("core.xla_model").all_reduce(kind, data, scale=scale)
    if whole:
        return reduced.to(tensor.device)
    with torch.no_grad():
        tensor.copy_(reduced)
    return tensor


def barrier(name: str | None) -> None:
    """Wait for every replica.

    Raises:
        CollectiveError: they are at barriers of different names.
    """
    runtime.xla().sync()
    _compare("barrier", name)


def broadcast(obj: Any, src: int, rank: int, device: torch.device) -> Any:
    """``obj`` of replica ``src``; its tensors come on the CPU of their own device's replica.

    Raises:
        CollectiveError: it can't be pickled, on every replica.
    """
    from poplin_tpu.checkpoint import to_host

    error, content = b"", b""
    if rank == src:
        try:
            content = pickle.dumps(to_host(obj))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}".encode()
    parts = exchange("broadcast", pickle.dumps((error, content)))
    error, content = pickle.loads(parts[src])
    if error:
        raise CollectiveError(f"broadcast: what rank {src} sends can't be pickled: {error.decode()}")
    if rank == src:
        return obj
    received = pickle.loads(content)
    return received.to(device) if isinstance(obj, Tensor) and obj.device.type == runtime.TORCH_XLA else received


def decide(decision: bool, all: bool) -> bool:
    """Whether every replica (``all``), or any, says True."""
    answers: list[bool] = [pickle.loads(part) for part in exchange("decision", pickle.dumps(bool(decision)))]
    return min(answers) if all else max(answers)


def exchange(tag: str, payload: bytes) -> list[bytes]:
    """Every replica's bytes, in the order of ranks. Computes what is pending first."""
    parts: list[bytes] = runtime.xla("core.xla_model").rendezvous(f"poplin/{tag}", payload)
    return parts or [payload]


def _compare(what: str, mine: Any) -> None:
    everyone = [pickle.loads(part) for part in exchange(what, pickle.dumps(mine))]
    if any(one != everyone[0] for one in everyone):
        told = ", ".join(f"rank {rank}: {one}" for rank, one in enumerate(everyone))
        raise CollectiveError(f"{what}: the ranks do not agree ({told}). Every rank must call it with the same.")


def _on_device(tensor: Tensor) -> Tensor:
    return tensor if tensor.device.type == runtime.TORCH_XLA else tensor.to(runtime.xla().device())
