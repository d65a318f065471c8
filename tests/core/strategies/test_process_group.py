"""Process groups: made or adopted, counted, contradicted, and given back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from poplin.errors import ArgumentTypeError, ArgumentValueError, UsageError
from poplin.strategies import ParallelStrategy, process_group
from poplin.strategies.process_group import Rendezvous, acquire, as_timeout, backend_spec, parse_spec, release
from poplin.testing.ranks import free_port
from poplin.testing.strategies import bind_strategy

BODY = """
import pickle

out = {}

# made, used by two strategies, destroyed with the last; a third one afterwards is as good as new
first, second = started(), started()
out["shared"] = [first.barrier("a"), second.all_reduce(torch.ones(1) * RANK).item(), dist.get_backend_config()]
first.teardown()
out["still_there"] = [dist.is_initialized(), second.all_reduce(torch.ones(1) * RANK, reduce_op="sum").item()]
first.teardown()  # a second one changes nothing
out["still"] = dist.is_initialized()
second.teardown()
out["gone"] = dist.is_initialized()
third = started(timeout=20)
out["third"] = third.all_reduce(torch.ones(1) * RANK, reduce_op="sum").item()
out["trace"] = third._trace.render()
out["second_trace"] = second._trace.render()
out["pickled"] = pickle.loads(pickle.dumps(bind_strategy(ParallelStrategy(timeout=3)))).timeout.total_seconds()
for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
    assert key in os.environ
third.teardown()

# ranks that can't be
out["impossible"] = RANK and error_of(bind_strategy(ParallelStrategy(), world_size=1).init_process_group)["class"]
out["nothing_left"] = dist.is_initialized()

# somebody else's
dist.init_process_group(
    "gloo", rank=RANK, world_size=WORLD, init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
)
theirs = dist.group.WORLD
adopted = start_strategy(ParallelStrategy(timeout=5))
out["adopted"] = [adopted.all_reduce(torch.ones(1) * RANK).item(), adopted.all_gather(torch.tensor([RANK])).tolist()]
out["adopted_objects"] = adopted.broadcast({"a": RANK})
out["adopted_trace"] = adopted._trace.render()
out["other_size"] = error_of(lambda: start_strategy(ParallelStrategy(), world_size=WORLD + 1))
out["other_backend"] = error_of(lambda: start_strategy(ParallelStrategy(process_group_backend="mpi")))
with_name = start_strategy(ParallelStrategy(process_group_backend="gloo"))
with_name.teardown()
adopted.teardown()
out["kept"] = dist.is_initialized() and dist.group.WORLD is theirs
again = started()
out["again"] = again.all_reduce(torch.ones(1) * RANK).item()
dist.destroy_process_group()  # its owner takes it away too early
out["taken"] = error_of(lambda: again.barrier())
again.teardown()

own = started()
dist.destroy_process_group()
own.teardown()
out["never_twice"] = dist.is_initialized()
last = started()
out["last"] = last.all_reduce(torch.ones(1) * RANK).item()
report(out)
theirs = None  # torch sometimes aborts a process that ends with a handle to a group
time.sleep(0.3)
# not torn down: it is given back at the end of the process, without a word
"""


@pytest.fixture(scope="module")
def two(run_strategy: Callable[..., list[Any]]) -> list[Any]:
    return run_strategy(BODY, world_size=2)


def test_a_group_of_ours_is_counted_and_destroyed_with_its_last_user(two: list[Any]) -> None:
    for result in two:
        assert result["shared"] == [None, 0.5, "cpu:gloo"]
        assert result["still_there"] == [True, 1]
        assert result["still"]
        assert not result["gone"]
        assert result["third"] == 1
        assert not result["never_twice"]
        assert result["last"] == 0.5


def test_the_trace_says_whose_it_is(two: list[Any]) -> None:
    for result in two:
        assert "none existed; timeout 20 s" in result["trace"]
        assert "another Fabric of this process has made it" in result["second_trace"]
        assert "one existed already, and is adopted" in result["adopted_trace"]
        assert "the timeout asked for does not reach it" in result["adopted_trace"]


def test_an_adopted_group_works_and_is_never_destroyed(two: list[Any]) -> None:
    for result in two:
        assert result["adopted"] == [0.5, [[0], [1]]]
        assert result["adopted_objects"] == {"a": 0}
        assert result["kept"]
        assert result["again"] == 0.5


def test_contradictions_with_an_existing_group(two: list[Any]) -> None:
    for rank, result in enumerate(two):
        assert result["other_size"]["class"] == "ContradictionError"
        assert f"rank {rank} of 2" in result["other_size"]["text"]
        assert f"rank {rank} of 3" in result["other_size"]["text"]
        assert result["other_backend"]["class"] == "ContradictionError"
        assert "'mpi'" in result["other_backend"]["text"]


def test_a_group_that_its_owner_destroyed_is_said_so(two: list[Any]) -> None:
    for result in two:
        assert result["taken"]["class"] == "UsageError"
        assert "has destroyed it" in result["taken"]["text"]


def test_impossible_ranks_leave_nothing_behind(two: list[Any]) -> None:
    assert two[1]["impossible"] == "SelectionError"  # rank 1 of 1
    assert [result["nothing_left"] for result in two] == [False, False]


def test_a_strategy_travels_without_its_group(two: list[Any]) -> None:
    assert [result["pickled"] for result in two] == [3, 3]


def test_the_backend_always_has_a_cpu_side() -> None:
    assert backend_spec("cpu", "gloo", "gloo") == "cpu:gloo"
    assert backend_spec("cpu", "mpi", "gloo") == "cpu:mpi"
    assert backend_spec("acme", "acl", "gloo") == "cpu:gloo,acme:acl"
    assert backend_spec("acme", None, "gloo") == "cpu:gloo"
    assert backend_spec("acme", "cpu:gloo,acme:x", "gloo") == "cpu:gloo,acme:x"
    assert parse_spec("cpu:gloo,acme:acl") == {"cpu": "gloo", "acme": "acl"}
    assert parse_spec("gloo") == {"*": "gloo"}


def test_timeouts() -> None:
    assert as_timeout(None) is None
    assert as_timeout(2.5) == as_timeout(timedelta(seconds=2.5)) == timedelta(seconds=2.5)
    with pytest.raises(ArgumentValueError, match="above zero"):
        ParallelStrategy(timeout=0)
    for wrong in ("30", True):
        with pytest.raises(ArgumentTypeError, match="timedelta"):
            ParallelStrategy(timeout=wrong)  # type: ignore[arg-type]


def test_collectives_before_launch_say_so() -> None:
    strategy = bind_strategy(ParallelStrategy(), world_size=2)
    assert strategy.world_size == 2
    assert strategy.store is None
    with pytest.raises(UsageError, match="launch"):
        strategy.barrier()
    strategy.teardown()


ONE_FAILS = """
from poplin.strategies import process_group

def no_network(*_):
    raise RuntimeError("no network")

connect = process_group._connect
if RANK == 1:
    process_group._connect = no_network
out = {"network": error_of(lambda: started(timeout=2))}
process_group._connect = connect
out["backend"] = error_of(lambda: started(timeout=2, process_group_backend="nonsense" if RANK == 1 else None))
both = started(timeout=30)
out["then"] = both.all_reduce(torch.ones(1) * RANK).item()
both.teardown()
report(out)
"""


def test_ranks_meet_again_after_one_of_them_could_not(run_strategy: Callable[..., list[Any]]) -> None:
    first, second = run_strategy(ONE_FAILS, world_size=2)
    assert first["network"]["class"] == first["backend"]["class"] == second["network"]["class"] == "LaunchError"
    assert "no network" in second["network"]["text"]
    assert second["backend"]["class"] == "ArgumentValueError"
    assert "no backend 'nonsense' here; it has fake, gloo" in second["backend"]["text"]
    assert first["then"] == second["then"] == 0.5


AT_EXIT = """
import atexit, time

ended = []
atexit.register(lambda: print("rested", time.monotonic() - ended[0]))  # the first to be registered is the last to run

from poplin.strategies import ParallelStrategy, process_group
from poplin.testing.strategies import start_strategy

strategy = start_strategy(ParallelStrategy())
held = strategy._shared.group
strategy.teardown()
ended.append(time.monotonic())
"""


def test_the_threads_of_a_group_that_is_still_held_have_time_to_finish() -> None:
    """Where the interpreter is gone before them, C++ sometimes aborts the process."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout.removeprefix("rested ")) >= process_group.REST


def test_a_group_is_not_bound_to_a_device_that_no_backend_of_it_serves() -> None:
    """torch refuses a device_id of such a type; the accelerator's tensors then go by way of the CPU."""
    place = Rendezvous(0, 1, "127.0.0.1", free_port())
    shared = acquire("cpu:gloo", place, device=torch.device("meta", 0))
    try:
        assert torch.distributed.get_backend_config() == "cpu:gloo"
        assert torch.distributed.group.WORLD.bound_device_id is None
    finally:
        release(shared)
    assert not torch.distributed.is_initialized()
