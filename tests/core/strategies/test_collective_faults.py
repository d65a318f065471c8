"""A collective that can't complete: an error on every rank that came, within the timeout, that names who did not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RunStrategy = Callable[..., list[Any]]

TIMEOUT = 2.5

BODY = f"""
TIMEOUT = {TIMEOUT}
out = {{}}


def case(name, function):
    strategy = started(timeout=TIMEOUT)
    out[name] = error_of(lambda: function(strategy))
    strategy.teardown()
    time.sleep(0.3)


def late(strategy):
    if RANK == 1:
        time.sleep(TIMEOUT + 1)
    strategy.all_reduce(torch.ones(3))


def skipped(strategy):
    strategy.barrier("both are here")
    if RANK == 0:
        strategy.all_reduce(torch.ones(3), reduce_op="sum")
    strategy.barrier("after the sum")


def left(strategy):
    if RANK == 0:
        strategy.all_gather(torch.ones(3))


def another(strategy):
    if RANK == 0:
        strategy.broadcast({{"a": 1}})
        strategy.barrier("sent")
    else:
        strategy.all_reduce(torch.ones(3), reduce_op="sum")


case("late", late)
case("skipped", skipped)
case("left", left)
case("another", another)
case("tensor_and_object", lambda strategy: strategy.broadcast(torch.ones(3) if RANK == 0 else {{"a": 1}}))
report(out)
"""


@pytest.fixture(scope="module")
def ranks(run_strategy: RunStrategy) -> list[Any]:
    return run_strategy(BODY, world_size=2)


def assert_in_time(error: Any) -> None:
    assert error["class"] == "CollectiveError"
    assert error["seconds"] < TIMEOUT + 10


def test_a_rank_that_comes_too_late(ranks: list[Any]) -> None:
    waiting, late = (result["late"] for result in ranks)
    assert_in_time(waiting)
    assert "missing is rank 1" in waiting["text"]
    assert f"after the timeout of {TIMEOUT:g} s" in waiting["text"]
    assert_in_time(late)
    assert "rank 0 has given up before" in late["text"]


def test_a_rank_that_skips_a_collective(ranks: list[Any]) -> None:
    for rank, result in enumerate(ranks):
        error = result["skipped"]
        assert_in_time(error)
        assert f"rank {1 - rank} called" in error["text"]
        assert "barrier 'after the sum'" in error["text"]
        assert "all_reduce sum (3,) float32" in error["text"]


def test_a_rank_that_has_left(ranks: list[Any]) -> None:
    error = ranks[0]["left"]
    assert_in_time(error)
    assert "missing is rank 1" in error["text"]
    assert "has closed its Fabric since" in error["text"]


def test_ranks_in_different_collectives(ranks: list[Any]) -> None:
    for result in ranks:
        assert_in_time(result["another"])
        assert "different collectives" in result["another"]["text"]


def test_a_tensor_on_one_rank_and_an_object_on_another_is_fine(ranks: list[Any]) -> None:
    assert [result["tensor_and_object"]["class"] for result in ranks] == [None, None]


def test_a_rank_that_dies(run_strategy: RunStrategy) -> None:
    body = """
    strategy = started(timeout=30)
    strategy.barrier("both are here")
    if RANK == 1:
        os.kill(os.getpid(), 9)
    report(error_of(lambda: strategy.all_reduce(torch.ones(3))))
    strategy.teardown()
    """
    survivor, dead = run_strategy(body, world_size=2, expect_failure=True)
    assert dead["exit"] == -9
    assert survivor["exit"] == 0, survivor["output"]
    assert survivor["report"]["class"] == "CollectiveError"
    assert survivor["report"]["seconds"] < 10
    assert "missing is rank 1" in survivor["report"]["text"]
    assert "barrier 'both are here'" in survivor["report"]["text"]
