"""Checks of a strategy's collectives."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from poplin.errors import CollectiveError
from poplin.testing.case import Case
from poplin.testing.checks import SEVERAL, requirement
from poplin.testing.suites.strategy_base import StrategyBase


class Collectives(StrategyBase):
    """Checks of ``all_reduce``, ``all_gather``, ``broadcast``, ``barrier`` and what is made of them."""

    @requirement("Strategy.global_rank", processes=SEVERAL)
    def test_ranks_and_world_size_are_those_of_the_processes(self, case: Case) -> None:
        """Each process has the rank and the world size that the environment gave it, and only one is global zero."""
        strategy = self.launched(case)
        case.expect_equal(strategy.world_size, case.world_size, "world_size")
        case.expect_equal(strategy.global_rank, case.rank, "global_rank")
        case.expect_equal(strategy.is_global_zero, case.rank == 0, "is_global_zero")
        case.expect(
            0 <= strategy.data_rank < strategy.data_world_size <= strategy.world_size,
            "0 <= data_rank < data_world_size <= world_size",
            f"data_rank {strategy.data_rank}, data_world_size {strategy.data_world_size}",
        )

    @requirement("Strategy.all_reduce", processes=SEVERAL)
    def test_all_reduce_sums(self, case: Case) -> None:
        """``reduce_op="sum"`` gives every rank the sum, in the tensor that was handed in."""
        strategy = self.launched(case)
        tensor = torch.tensor([1.0, 10.0], device=strategy.root_device) * (case.rank + 1)
        result = strategy.all_reduce(tensor, reduce_op="sum")
        total = sum(rank + 1 for rank in range(case.world_size))
        case.expect_close(result, torch.tensor([1.0, 10.0]) * total, "the sum over ranks of [1, 10] * (rank + 1)")
        case.expect(result is tensor, "the tensor itself, reduced in place", "another tensor")

    @requirement("Strategy.all_reduce", processes=SEVERAL)
    def test_all_reduce_means(self, case: Case) -> None:
        """The default is the mean over those who share the data; of integers it is a new float tensor."""
        strategy = self.launched(case)
        size = case.world_size
        if strategy.data_world_size != size:
            case.not_claimed(f"data_world_size is {strategy.data_world_size} of {size} ranks")
        mean = sum(range(1, size + 1)) / size
        found = strategy.all_reduce(torch.tensor([1.0, 10.0], device=strategy.root_device) * (case.rank + 1))
        case.expect_close(found, torch.tensor([1.0, 10.0]) * mean, "the mean over ranks of [1, 10] * (rank + 1)")
        if size == 1:
            return  # one process: as it is
        whole = torch.tensor([case.rank + 1], device=strategy.root_device)
        result = strategy.all_reduce(whole)
        case.expect(result.is_floating_point(), "a float tensor as the mean of integers", result.dtype)
        case.expect_close(result, torch.tensor([mean]), "the mean over ranks of rank + 1")
        case.expect_equal(whole.tolist(), [case.rank + 1], "the integers that were handed in, afterwards")

    @requirement("Strategy.all_reduce", processes=SEVERAL)
    def test_all_reduce_takes_the_greatest_and_the_least(self, case: Case) -> None:
        """``"max"``, ``"min"`` and ``"product"`` are what they say."""
        strategy = self.launched(case)
        values = [float(rank + 2) for rank in range(case.world_size)]
        product = float(torch.tensor(values).prod())
        for op, wanted in (("max", max(values)), ("min", min(values)), ("product", product)):
            found = strategy.all_reduce(torch.tensor([values[case.rank]], device=strategy.root_device), reduce_op=op)
            case.expect_close(found, torch.tensor([wanted]), f"{op} over ranks of rank + 2")

    @requirement("Strategy.all_gather", processes=SEVERAL)
    def test_all_gather_adds_a_dimension_in_rank_order(self, case: Case) -> None:
        """``all_gather`` gives every rank a tensor of shape (world size, *shape), in the order of the ranks."""
        strategy = self.launched(case)
        for dtype in (torch.float32, torch.int64, torch.bool):
            tensor = torch.tensor([[case.rank, 1]], device=strategy.root_device).to(dtype)
            found = strategy.all_gather(tensor)
            wanted = torch.tensor([[[rank, 1]] for rank in range(case.world_size)]).to(dtype)
            wanted = wanted if case.world_size > 1 else wanted[0]  # one process: as it is
            case.expect_equal(found.dtype, dtype, "dtype of what was gathered")
            case.expect_close(found, wanted, f"the gathered [[rank, 1]] in {dtype}")

    @requirement("Strategy.all_gather", processes=SEVERAL)
    def test_all_gather_refuses_unequal_shapes_on_every_rank(self, case: Case) -> None:
        """Shapes that differ are a CollectiveError on every rank, never garbage, and the next call works."""
        case.needs_several()
        strategy = self.launched(case)
        uneven = torch.ones(case.rank + 1, device=strategy.root_device)
        case.expect_error(CollectiveError, lambda: strategy.all_gather(uneven), "for shapes that differ across ranks")
        case.expect_close(
            strategy.all_gather(torch.ones(1, device=strategy.root_device)),
            torch.ones(case.world_size, 1),
            "the next gathering",
        )

    @requirement("Strategy.all_gather", processes=SEVERAL)
    def test_gradients_flow_through_all_gather_if_asked(self, case: Case) -> None:
        """With ``sync_grads=True`` each rank's part gets the sum of what all ranks ask of it; without, none."""
        case.needs_several()
        strategy = self.launched(case)
        mine = torch.ones(2, device=strategy.root_device, requires_grad=True)
        (strategy.all_gather(mine, sync_grads=True).sum() * (case.rank + 1)).backward()
        total = float(sum(range(1, case.world_size + 1)))
        case.expect(mine.grad is not None, "a gradient of what was gathered with sync_grads=True", "none")
        assert mine.grad is not None
        case.expect_close(mine.grad, torch.full((2,), total), "the gradient, summed over the ranks")
        case.expect(not strategy.all_gather(mine).requires_grad, "no gradient without sync_grads", "requires_grad=True")

    @requirement("Strategy.broadcast", processes=SEVERAL)
    def test_broadcast_sends_any_object_from_any_rank(self, case: Case) -> None:
        """``broadcast`` gives every rank the object of ``src``: plain values, nested tensors, a tensor."""
        strategy = self.launched(case)
        for src in range(case.world_size):
            sent = {"rank": case.rank, "words": ["a", None], "tensor": torch.full((3,), float(case.rank))}
            found: Any = strategy.broadcast(sent if case.rank == src else None, src=src)
            case.expect(isinstance(found, dict), f"the dict of rank {src}", found)
            case.expect_equal([found["rank"], found["words"]], [src, ["a", None]], f"plain values of rank {src}")
            case.expect_close(found["tensor"], torch.full((3,), float(src)), f"the nested tensor of rank {src}")
        tensor = torch.full((2,), float(case.rank), device=strategy.root_device)
        last = case.world_size - 1
        case.expect_close(strategy.broadcast(tensor, src=last), torch.full((2,), float(last)), "the last rank's tensor")

    @requirement("Strategy.broadcast", processes=SEVERAL)
    def test_broadcast_of_what_cannot_be_sent_is_an_error_on_every_rank(self, case: Case) -> None:
        """An object that can't be pickled raises on every rank, so that none waits for it."""
        case.needs_several()
        strategy = self.launched(case)
        unsendable = threading.Lock() if case.rank == 0 else None
        case.expect_error(Exception, lambda: strategy.broadcast(unsendable), "for a lock as the object")
        case.expect_equal(strategy.broadcast(case.rank), 0, "the next broadcast")

    @requirement("Strategy.barrier", processes=SEVERAL)
    def test_barrier_waits_for_every_rank(self, case: Case) -> None:
        """No rank leaves a barrier before the last has come to it."""
        case.needs_several()
        strategy = self.launched(case)
        strategy.barrier("warm")
        came = case.folder / "came"
        if case.rank == case.world_size - 1:
            time.sleep(0.3)
            came.touch()
        strategy.barrier("late")
        case.expect(came.exists(), "the barrier holds until the last rank comes", "it let this rank through before")

    @requirement("Strategy.reduce_boolean_decision", processes=SEVERAL)
    def test_a_decision_is_the_same_on_every_rank(self, case: Case) -> None:
        """``all=True`` is the "and" of the ranks, ``all=False`` the "or"."""
        case.needs_several()
        strategy = self.launched(case)
        first = case.rank == 0
        for decision, every, wanted in (
            (first, True, False),
            (first, False, True),
            (True, True, True),
            (False, False, False),
        ):
            found = strategy.reduce_boolean_decision(decision, all=every)
            case.expect_equal(bool(found), wanted, f"the decision with all={every}")

    @requirement("Strategy.rank_zero_first", processes=SEVERAL)
    def test_rank_zero_goes_first(self, case: Case) -> None:
        """The others enter ``rank_zero_first`` when rank 0 has left it, and its error reaches them."""
        case.needs_several()
        strategy = self.launched(case)
        done = case.folder / "done"
        with strategy.rank_zero_first():
            if case.rank == 0:
                time.sleep(0.2)
                done.touch()
            case.expect(done.exists(), "rank 0 has left before another enters", "it has not")

        def failing() -> None:
            with strategy.rank_zero_first():
                if case.rank == 0:
                    raise ValueError("rank 0 fails")

        wanted = ValueError if case.rank == 0 else CollectiveError
        case.expect_error(wanted, failing, "where rank 0 raises in it")
