"""Saving in the background: the state is copied at the call, and written while training goes on.

Where one rank writes, only that one has a thread. Ranks agree on the outcome when the handle is waited for, in the
main thread: no collective ever runs beside those of the training.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from poplin.checkpoint.agreement import on_all_ranks, settle
from poplin.checkpoint.format import map_tensors, walk_tensors
from poplin.errors import CheckpointError, CollectiveError

if TYPE_CHECKING:
    from poplin.checkpoint.checkpoint_io import CheckpointIO
    from poplin.strategies.strategy import Strategy


class SaveHandle:
    """A checkpoint that is being written.

    Args:
        strategy: brings the ranks together.
        path: for messages.
        write: what the thread runs, or None on a rank that has nothing to write.
    """

    def __init__(self, strategy: Strategy, path: str, write: Callable[[], None] | None) -> None:
        self.path = path
        self._strategy = strategy
        self._failure: Exception | None = None
        self._waited = False
        self._thread: threading.Thread | None = None
        if write is not None:
            # not a daemon: the interpreter waits for it before it exits
            self._thread = threading.Thread(target=self._run, args=(write,), name=f"poplin save {path}", daemon=False)
            self._thread.start()

    def done(self) -> bool:
        """Whether this rank has nothing left to write. (Another one may.)"""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Return when the checkpoint is whole; a collective: every rank calls it.

        Raises:
            CheckpointError: it could not be written; what stood at the path before still stands.
        """
        if self._thread is not None:
            self._thread.join()
        if not self._waited:
            self._waited = True
            pending = _PENDING.get(self._strategy)
            if pending is not None and pending.handle is self:
                pending.handle = None
            try:
                if not isinstance(self._failure, CollectiveError):  # a rank is gone: there is nobody to agree with
                    settle(self._strategy, f"saving {self.path} in the background", self._failure)
            except Exception as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure

    def wait_here(self) -> None:
        """Wait for this rank's writing, whatever the others do.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None and not self._waited:
            self._waited = True
            raise self._failure

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # told by wait()
            self._failure = error
        except BaseException as error:
            self._failure = CheckpointError(f"Saving {self.path} in the background was cut off: {error!r}")
            raise


class _Pending:
    """What one strategy has in the background, and the memory that copies are made in."""

    def __init__(self) -> None:
        self.handle: SaveHandle | None = None
        self.buffers: dict[tuple[Any, ...], Tensor] = {}


_PENDING: weakref.WeakKeyDictionary[Strategy, _Pending] = weakref.WeakKeyDictionary()


def start(
    strategy: Strategy,
    path: str,
    checkpoint: dict[str, Any],
    write: Callable[[dict[str, Any]], None],
    storage_options: Any | None = None,
) -> SaveHandle:
    """Copy ``checkpoint`` and write it in the background; a collective.

    An earlier one is waited for first: its error is raised here, if nobody has seen it.
    """
    finish(strategy)
    pending = _PENDING.setdefault(strategy, _Pending())
    doing = f"saving {path}"
    run: Callable[[], None] | None
    if strategy.checkpoint_io is not None and strategy.checkpoint_io.sharded:
        run = _planned(strategy, strategy.checkpoint_io, path, checkpoint, write, storage_options, pending)
    else:
        writes = strategy.is_global_zero
        copied = on_all_ranks(strategy, doing, lambda: _copied(checkpoint, pending.buffers) if writes else {})
        run = (lambda: write(copied)) if writes else None
    pending.handle = SaveHandle(strategy, path, run)
    return pending.handle


def _planned(
    strategy: Strategy,
    checkpoint_io: CheckpointIO,
    path: str,
    checkpoint: dict[str, Any],
    write: Callable[[dict[str, Any]], None],
    storage_options: Any,
    pending: _Pending,
) -> Callable[[], None] | None:
    """Where every rank writes: they plan now, each copies what it is to write, and the threads write."""
    doing = f"saving {path}"
    planned = on_all_ranks(strategy, doing, lambda: checkpoint_io.prepare_save(checkpoint, path, storage_options))
    if planned is None:
        on_all_ranks(strategy, doing, lambda: write(checkpoint))
        return None
    try:
        on_all_ranks(strategy, doing, lambda: planned.stage(pending.buffers))
    except BaseException:
        planned.abandon()
        raise
    return planned.write


def finish(strategy: Strategy) -> None:
    """Wait for what is being written in the background; a collective. Called before each save and load, and at the end.

    Raises:
        CheckpointError: it could not be written, and nobody has seen the error yet.
    """
    pending = _PENDING.get(strategy)
    if pending is not None and pending.handle is not None:
        pending.handle.wait()


def close(strategy: Strategy, failed: bool) -> None:
    """Wait for what is being written, and give back the memory in which copies are made. Called by ``Fabric.close``.

    Args:
        strategy: the Fabric's.
        failed: an error ends the run: other ranks may be gone, so that this rank waits for its own writing only.

    Raises:
        CheckpointError: it could not be written, and nobody has seen the error yet.
    """
    pending = _PENDING.pop(strategy, None)
    if pending is None or pending.handle is None:
        return
    if failed:
        pending.handle.wait_here()
    else:
        pending.handle.wait()


def _copied(checkpoint: dict[str, Any], buffers: dict[tuple[Any, ...], Tensor]) -> dict[str, Any]:
    """``checkpoint`` with CPU copies of its tensors; those that are views of the same values have one copy.

    Copies are made in memory kept from the last time where shapes and dtypes are still the same: that takes a fraction
    of the time that fresh memory takes.
    """
    kept = dict(buffers)
    buffers.clear()
    copies: dict[tuple[Any, ...], Tensor] = {}
    names = {id(tensor): path for path, tensor in reversed(list(walk_tensors(checkpoint)))}

    def copy(tensor: Tensor) -> Tensor:
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
            return tensor.detach().to(device="cpu", copy=True)
        address = tensor.data_ptr() or id(tensor)  # a device that gives no addresses says 0 of each
        view = (tensor.device, address, tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj())
        if tensor.numel() and view in copies:
            return copies[view]
        key = (names.get(id(tensor)), tuple(tensor.shape), tensor.dtype)
        buffer: Tensor | None = kept.pop(key, None)
        if buffer is None:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        buffers[key] = copies[view] = buffer
        buffer.copy_(tensor.detach())
        return buffer

    result: dict[str, Any] = map_tensors(checkpoint, copy)
    return result
