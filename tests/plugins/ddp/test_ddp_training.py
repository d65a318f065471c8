"""Two ranks of DDP against one plain process on the same global batch, and what the replica must let through."""

from __future__ import annotations

from typing import Any

import pytest

from poplin.testing.ranks import run_ranks

SCRIPT = """
import os
import warnings

warnings.simplefilter("error")
import torch
from torch import nn

from poplin.strategies import parameter_names
from poplin.testing.ranks import report
from poplin.testing.strategies import error_of, start_strategy
from poplin_ddp.strategy import DDPStrategy

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, BATCH = 10, 8
out = {}
strategy = start_strategy(DDPStrategy(timeout=30))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 16)
        self.head = nn.Linear(16, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))

    def training_step(self, batch, scale=1.0):
        x, y = batch
        return scale * nn.functional.mse_loss(self(x), y)


def data():
    generator = torch.Generator().manual_seed(3)
    return [[torch.randn(BATCH, width, generator=generator) for width in (6, 1)] for _ in range(STEPS)]


def parts(batch, micro_batches):
    # this rank's share of a global batch, in micro batches
    share = [tensor.chunk(WORLD)[RANK] for tensor in batch]
    return list(zip(*(tensor.chunk(micro_batches) for tensor in share)))


def model_of(seed):
    torch.manual_seed(seed)
    return Model()


def plain(clip):
    model = model_of(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for batch in data():
        optimizer.zero_grad()
        model.training_step(batch).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def replicated(clip, micro_batches):
    model = model_of(RANK)  # the ranks start differently: rank 0's values count
    wrapped = strategy.setup_module(model)
    optimizer = strategy.setup_optimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    step = strategy.forward_method(wrapped, "training_step")
    for batch in data():
        optimizer.zero_grad()
        micro = parts(batch, micro_batches)
        for number, (x, y) in enumerate(micro):
            with strategy.no_backward_sync(wrapped, enabled=number + 1 < len(micro)):
                if number % 2:
                    loss = nn.functional.mse_loss(wrapped(x), y) / len(micro)
                else:
                    loss = step((x, y), scale=1 / len(micro))
                strategy.backward(loss, wrapped)
        if clip:
            strategy.clip_gradients_norm(wrapped, optimizer, clip)
        strategy.optimizer_step(optimizer, wrapped)
    return model, wrapped, optimizer


def spread(tensor):
    # how far the ranks are from each other
    highest, lowest = (strategy.all_reduce(tensor.clone(), reduce_op=op) for op in ("max", "min"))
    return (highest - lowest).max().item()


def distance(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters()))


reference = {clip: plain(clip) for clip in (None, 0.1)}
out["distance"] = {}
for clip in (None, 0.1):
    for micro_batches in (1, 2, 4):
        model, wrapped, optimizer = replicated(clip, micro_batches)
        out["distance"][f"clip {clip}, {micro_batches} micro batches"] = distance(model, reference[clip])
out["moved"] = distance(model_of(0), reference[None])
out["names"] = list(strategy.get_module_state_dict(wrapped))
state = strategy.get_optimizer_state(optimizer, parameter_names({"": model}))
out["optimizer_names"] = sorted(state["state"])
out["original"] = strategy.original_module(wrapped) is model
strategy.load_module_state_dict(wrapped, reference[None].state_dict())
out["loaded"] = distance(model, reference[None])

# two modules, one optimizer, one loss: both wait
first, second = nn.Linear(4, 4), nn.Linear(4, 1)
pair = [strategy.setup_module(module) for module in (first, second)]
x = torch.full((2, 4), -1.0 if RANK else 1.0)
with strategy.no_backward_sync(pair[0]), strategy.no_backward_sync(pair[1]):
    strategy.backward(pair[1](pair[0](x)).sum(), None)
own = [module.weight.grad.clone() for module in (first, second)]
out["unsynced"] = [spread(grad) > 0.01 for grad in own]
strategy.backward(pair[1](pair[0](x)).sum(), None)
out["synced"] = [spread(module.weight.grad) for module in (first, second)]
with strategy.no_backward_sync(pair[0]):
    before = pair[0].require_backward_grad_sync
out["restored"] = [before, pair[0].require_backward_grad_sync]

# nothing to train: as it is
frozen = nn.Linear(2, 2).requires_grad_(False)
out["frozen"] = [strategy.setup_module(frozen) is frozen, strategy.original_module(frozen) is frozen]
with strategy.no_backward_sync(frozen):
    strategy.forward_method(frozen, "forward")(torch.ones(1, 2))

# buffers come from rank 0, and ranks may evaluate different numbers of batches
norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
replica = strategy.setup_module(norm)
replica(torch.randn(4, 3) + 10 * RANK).sum().backward()
norm.eval()
with torch.no_grad():
    for _ in range(1 + 2 * RANK):
        replica(torch.randn(4, 3))
out["running_mean_spread"] = spread(norm[1].running_mean)
norm.train()
replica(torch.randn(4, 3)).sum().backward()

# parameters that a step leaves out
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        return self.used(x)


lenient = start_strategy(DDPStrategy(find_unused_parameters=True, gradient_as_bucket_view=True))
branches = Branches()
loose = lenient.setup_module(branches)
for _ in range(2):
    loose(torch.ones(1, 2)).sum().backward()
out["unused"] = branches.unused.weight.grad is None or not branches.unused.weight.grad.any().item()

# what torch is told to leave alone
kept = nn.Linear(2, 2)
kept.register_parameter("own", nn.Parameter(torch.full((1,), float(RANK))))
kept._ddp_params_and_buffers_to_ignore = ["own"]
lenient.setup_module(kept)
out["ignored"] = kept.own.item()

# a method that fails leaves the door as it was
class Failing(nn.Linear):
    def failing(self):
        raise ValueError("no")


failing = Failing(2, 2)
door = strategy.setup_module(failing)
out["failing"] = error_of(strategy.forward_method(door, "failing"))["class"]
out["after_failing"] = list(door(torch.ones(1, 2)).shape)
# a compiled replica trains as well
compiled = strategy.setup_module(model_of(RANK))
as_one = torch.compile(compiled, backend="eager")
x = torch.full((2, 6), RANK + 1.0)
as_one(x).sum().backward()
out["compiled"] = spread(strategy.original_module(compiled).hidden.weight.grad)
lenient.teardown()
strategy.teardown()
out["after"] = list(door(torch.ones(1, 2)).shape)
# it goes on alone: each rank as often as it likes, gradients its own
for _ in range(1 + RANK):
    strategy.forward_method(door, "forward")(torch.ones(1, 2)).sum().backward()
out["alone"] = failing.weight.grad[0, 0].item()
# a model that goes right after its group: the group must not end under the lock that its threads wait for
for _ in range(20):
    short = start_strategy(DDPStrategy())
    model = short.setup_module(nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    short.all_reduce(torch.ones(2))
    short.broadcast({"a": RANK})
    short.teardown()
    del model
out["went"] = True
report(out)
"""

FAULTS = """
import os
import time

import torch
from torch import nn

from poplin.testing.ranks import report
from poplin.testing.strategies import error_of, start_strategy
from poplin_ddp.strategy import DDPStrategy

RANK = int(os.environ["RANK"])
out = {}


def case(name, function):
    strategy = start_strategy(DDPStrategy(timeout=2.5))
    model = strategy.setup_module(nn.Sequential(nn.Linear(2, 2)))

    def step():
        strategy.backward(model(torch.ones(1, 2)).sum(), model)

    for _ in range(3):  # torch arranges its buckets anew in the second
        step()
    out[name] = error_of(lambda: function(strategy, model, step))
    strategy.teardown()
    time.sleep(0.3)


def uneven(strategy, model, step):
    if RANK == 0:
        step()
    else:
        strategy.barrier("end of the epoch")


def not_about_ranks(strategy, model, step):
    model(torch.ones(1, 3))


case("uneven", uneven)
case("shapes", not_about_ranks)
report(out)
"""


@pytest.fixture(scope="module", params=[2, 1], ids=["two ranks", "one rank"])
def ranks(request: pytest.FixtureRequest) -> list[Any]:
    return run_ranks(SCRIPT, world_size=request.param)


def test_training_equals_one_process_on_the_global_batch(ranks: list[Any]) -> None:
    for result in ranks:
        assert result["moved"] > 0.1
        assert len(result["distance"]) == 6
        assert max(result["distance"].values()) <= 1e-6, result["distance"]


def test_state_dicts_speak_the_users_names(ranks: list[Any]) -> None:
    names = ["hidden.weight", "hidden.bias", "head.weight", "head.bias"]
    for result in ranks:
        assert sorted(result["names"]) == sorted([*names, "seen"])
        assert result["optimizer_names"] == sorted(names)
        assert result["original"]
        assert result["loaded"] == 0


def test_no_backward_sync_over_several_modules(ranks: list[Any]) -> None:
    for result in ranks:
        assert result["unsynced"] == [len(ranks) > 1] * 2
        assert max(result["synced"]) < 1e-6
        assert result["restored"] == [False, True]


def test_frozen_modules_pass_through(ranks: list[Any]) -> None:
    assert [result["frozen"] for result in ranks] == [[True, True]] * len(ranks)


def test_ranks_may_evaluate_different_numbers_of_batches(ranks: list[Any]) -> None:
    assert max(result["running_mean_spread"] for result in ranks) == 0


def test_a_missing_rank_is_named_by_the_backward_pass() -> None:
    results = run_ranks(FAULTS, world_size=2)
    zero, one = (result["uneven"] for result in results)
    for error, other in ((zero, 1), (one, 0)):
        assert error["class"] == "CollectiveError"
        assert error["seconds"] < 12
        assert f"missing is rank {other}" in error["text"]
    assert zero["text"].startswith("backward (call 8 of this group) failed on rank 0")
    assert "it was last in barrier 'end of the epoch'" in zero["text"]
    assert "its engine it was last in backward" in one["text"]
    for result in results:  # what has nothing to do with other ranks stays as it is
        assert result["shapes"]["class"] == "RuntimeError"
        assert "shapes cannot be multiplied" in result["shapes"]["text"]


def test_a_compiled_replica_and_a_closed_strategy(ranks: list[Any]) -> None:
    for result in ranks:
        assert result["compiled"] < 1e-6
        assert result["after"] == [1, 2]
    assert [result["alone"] for result in ranks] == [1.0, 2.0][: len(ranks)]


def test_a_model_that_goes_right_after_its_group_ends_well(ranks: list[Any]) -> None:
    assert all(result["went"] for result in ranks)


def test_arguments_reach_torch(ranks: list[Any]) -> None:
    for rank, result in enumerate(ranks):
        assert result["unused"]
        assert result["ignored"] == rank


def test_a_failing_method_leaves_the_replica_usable(ranks: list[Any]) -> None:
    for result in ranks:
        assert result["failing"] == "ValueError"
        assert result["after_failing"] == [1, 2]
