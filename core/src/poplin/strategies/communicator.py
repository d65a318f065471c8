"""The collectives of a parallel strategy, on single tensors and objects.

They cost what torch's own cost. Shapes are exchanged where they decide the result (``all_gather``); with
``POPLIN_DEBUG=1`` ranks compare what they are about to do before every collective. One that fails says which ranks
are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

import poplin.strategies.frames as frames
from poplin.errors import ArgumentValueError, CollectiveError
from poplin.strategies.broadcasting import receive, send
from poplin.strategies.collective_log import Call, CollectiveLog, GroupView, name_ranks
from poplin.strategies.process_group import SharedGroup, require
from poplin.strategies.reductions import (
    is_without_average,
    native_op,
    parse_reduce_op,
    reduce_in_place,
    reduces_directly,
)

T = TypeVar("T")


class Communicator:
    """Collectives over a process group and its subgroups.

    Args:
        shared: the process group of the run.
        rank: global rank of this process.
        device: of this process; what comes from another rank's device is put here.
    """

    def __init__(self, shared: SharedGroup, rank: int, device: torch.device) -> None:
        self.shared = shared
        self.rank = rank
        self.device = device
        self.log = CollectiveLog(shared, rank)
        self.checks_all = os.environ.get("POPLIN_DEBUG", "") not in ("", "0")

    # --- collectives

    def all_gather(self, tensor: Tensor, group: dist.ProcessGroup | None = None, sync_grads: bool = False) -> Tensor:
        """See :meth:`Strategy.all_gather`."""
        view = self._view(group, "all_gather")
        if view.size == 1:
            return tensor
        call = self.log.begin(view, "all_gather", tensor)
        if tensor.layout is not torch.strided:
            self._agree(call, f"{call.what} {tensor.layout}")
            raise CollectiveError(f"all_gather takes dense tensors only, and this one is {tensor.layout}.")
        differentiable = sync_grads and tensor.requires_grad and torch.is_grad_enabled()
        if not differentiable and frames.fits_agreement(tensor) and tensor.device == self.control_device(view):
            return self._gather_with_agreement(tensor, call)
        self._agree(call, call.what)
        if differentiable:
            gathered: Tensor = _GatherWithGradient.apply(tensor, self, call)  # type: ignore[no-untyped-call]
            return gathered
        return self._gather(tensor, call)

    def all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None, reduce_op: Any) -> Tensor:
        """See :meth:`Strategy.all_reduce`; ``group`` None means all ranks."""
        reduction = parse_reduce_op(reduce_op)
        view = self._view(group, "all_reduce")
        if view.size == 1:
            return reduce_in_place(tensor, reduction, 1, lambda part, op: None)
        call = self.log.begin(view, f"all_reduce {reduction.name}", tensor)
        if self.checks_all:
            self._agree(call, call.what)

        if view.serves(tensor.device.type) and reduces_directly(tensor, reduction):  # the usual one, without detours
            target = tensor.detach() if tensor.requires_grad else tensor
            try:
                dist.all_reduce(target, op=native_op(reduction), group=view.group)
            except RuntimeError as error:
                if not is_without_average(target, reduction, error):
                    raise self.log.failure(call, error) from error
            else:
                return tensor

        def reduce_flat(part: Tensor, op: Any) -> None:
            staged = self.staged(part, view)
            self.run(call, lambda: dist.all_reduce(staged, op=op, group=view.group))
            if staged is not part:
                part.copy_(staged)

        return reduce_in_place(tensor, reduction, view.size, reduce_flat)

    def barrier(self, name: str | None = None, group: dist.ProcessGroup | None = None) -> None:
        """See :meth:`Strategy.barrier`."""
        view = self._view(group, "barrier")
        if view.size == 1:
            return
        call = self.log.begin(view, "barrier" if name is None else f"barrier {name!r}")
        self._agree(call, call.what)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """See :meth:`Strategy.reduce_boolean_decision`."""
        view = self._view(None, "reduce_boolean_decision")
        if view.size == 1:
            return bool(decision)
        call = self.log.begin(view, f"reduce_boolean_decision {'all' if all else 'any'}")
        if self.checks_all:
            self._agree(call, call.what)
        vote = torch.tensor([int(bool(decision))], dtype=torch.int32, device=self.control_device(view))
        op = dist.ReduceOp.MIN if all else dist.ReduceOp.MAX
        self.run(call, lambda: dist.all_reduce(vote, op=op, group=view.group))
        return bool(vote.item())

    def broadcast(self, obj: T, src: int = 0) -> T:
        """See :meth:`Strategy.broadcast`.

        A small header goes ahead, so that the receivers need to know nothing: a tensor on one rank and None on
        another is fine. What a receiver passes in is left as it is.
        """
        view = self._view(None, "broadcast")
        if isinstance(src, bool) or not isinstance(src, int) or not 0 <= src < view.size:
            raise ArgumentValueError(f"src={src!r}: give the rank that sends, from 0 to {view.size - 1}.")
        if view.size == 1:
            return obj
        call = self.log.begin(view, f"broadcast from rank {src}")
        if self.checks_all:
            self._agree(call, call.what)
        if src == self.rank:
            send(self, obj, src, call)
            return obj
        received: T = receive(self, src, call)
        return received

    # --- parts

    def _view(self, group: dist.ProcessGroup | None, what: str) -> GroupView:
        require(self.shared, what)
        return self.log.view(group)

    def run(self, call: Call, collective: Callable[[], Any]) -> None:
        """Run a collective of torch's; where it fails, say which ranks are missing."""
        try:
            collective()
        except RuntimeError as error:
            raise self.log.failure(call, error) from error

    def _agree(self, call: Call, what: str) -> None:
        """Go on when every rank is about to do ``what``. Waits for all of them.

        Raises:
            CollectiveError: on every rank, with what each is about to do.
        """
        self._exchange(call, frames.agreement_frame(what).to(self.control_device(call.view)))

    def _gather_with_agreement(self, tensor: Tensor, call: Call) -> Tensor:
        """A small tensor travels in the frame that says what comes: one message instead of two."""
        part = frames.bare(tensor)
        mine = frames.agreement_frame(call.what).to(part.device)
        end = frames.INTENT_BYTES + part.nbytes
        mine[frames.INTENT_BYTES : end] = frames.as_bytes(part)
        everyone = self._exchange(call, mine)[:, frames.INTENT_BYTES : end].contiguous()
        return everyone.view(-1).view(part.dtype).view(call.view.size, *part.shape)

    def _exchange(self, call: Call, mine: Tensor) -> Tensor:
        """Everyone's frame, one a row, once it is sure that they agree in what they are about to do."""
        view = call.view
        flat = torch.empty(view.size * len(mine), dtype=torch.uint8, device=mine.device)
        self.run(call, lambda: frames.all_gather_flat(flat, mine, group=view.group))
        everyone = flat.view(view.size, -1)
        if bool((everyone[:, : frames.INTENT_BYTES] == mine[: frames.INTENT_BYTES]).all()):
            return everyone
        intents = dict(zip(view.ranks, frames.read_intents(everyone.cpu()), strict=True))
        by_intent: dict[str, list[int]] = {}
        for rank, intent in intents.items():
            by_intent.setdefault(intent or "(nothing readable)", []).append(rank)
        told = "; ".join(f"{name_ranks(ranks)}: {intent}" for intent, ranks in by_intent.items())
        hint = (
            "Pad the tensors to one shape, or gather them as objects."
            if all(intent.startswith("all_gather ") for intent in intents.values())
            else "Every rank must call the same collectives in the same order."
        )
        raise CollectiveError(f"The ranks differ in what they are about to do: {told}. {hint}")

    def control_device(self, view: GroupView) -> torch.device:
        """Where frames travel: on the CPU side, if the group has one."""
        return torch.device("cpu") if view.serves("cpu") else self.device

    def staged(self, tensor: Tensor, view: GroupView) -> Tensor:
        """``tensor``, or a copy on the CPU if the group can't take tensors of its device."""
        if view.serves(tensor.device.type) or not view.serves("cpu"):
            return tensor
        return tensor.cpu()

    def _gather(self, tensor: Tensor, call: Call) -> Tensor:
        view = call.view
        part = frames.bare(tensor)
        gathered = torch.empty((view.size, *part.shape), dtype=part.dtype, device=part.device)
        if part.numel() == 0:
            return gathered
        if view.serves(part.device.type) or not view.serves("cpu"):
            self.run(call, lambda: frames.all_gather_flat(frames.flat(gathered), frames.flat(part), group=view.group))
            return gathered
        staged = torch.empty(gathered.shape, dtype=gathered.dtype)
        self.run(call, lambda: frames.all_gather_flat(frames.flat(staged), frames.flat(part.cpu()), group=view.group))
        return gathered.copy_(staged)

    def _sum_of_own_part(self, stacked: Tensor, call: Call) -> Tensor:
        """The sum over ranks of ``stacked[own index]``: the gradient of a gather."""
        view = call.view
        parts = frames.bare(stacked)
        if parts.is_complex():
            return torch.view_as_complex(self._sum_of_own_part(torch.view_as_real(parts), call))
        staged = self.staged(parts, view)
        own = torch.empty(staged.shape[1:], dtype=staged.dtype, device=staged.device)
        if own.numel():
            self.run(
                call,
                lambda: frames.reduce_scatter_flat(
                    own.view(-1), staged.view(-1), op=dist.ReduceOp.SUM, group=view.group
                ),
            )
        return own.to(stacked.device)


class _GatherWithGradient(torch.autograd.Function):
    """``all_gather`` whose gradient is the sum, over ranks, of what each rank's result asks of this rank's part."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, communicator: Communicator, call: Call) -> Tensor:
        ctx.communicator, ctx.view = communicator, call.view
        return communicator._gather(tensor, call)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        communicator: Communicator = ctx.communicator
        call = communicator.log.begin(ctx.view, "backward of all_gather", grad[0])
        return communicator._sum_of_own_part(grad, call), None, None
