"""Run by test_strategy_ranks.py in two processes: strategies whose state is saved and restored by collectives."""

import json
import sys
from pathlib import Path

import torch
from outcomes import outcome
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from poplin import Fabric
from poplin.errors import CollectiveError
from poplin.strategies import ParallelStrategy
from poplin.testing import report

folder = Path(sys.argv[1])
seen = {}


class Outer(ParallelStrategy):
    """Local SGD with an outer momentum: each third step the ranks meet, and follow their mean change."""

    averages_gradients = False
    period = 3

    def __init__(self):
        super().__init__()
        self.parameters, self.anchor, self.momentum, self.steps = [], [], [], 0
        self.trouble, self.given = "", 0

    def setup_module(self, module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(self.broadcast(parameter))
        self.parameters = list(module.parameters())
        self.anchor = [parameter.detach().clone() for parameter in self.parameters]
        self.momentum = [torch.zeros_like(parameter) for parameter in self.anchor]
        return module

    def optimizer_step(self, optimizer, model=None, **kwargs):
        result = super().optimizer_step(optimizer, model, **kwargs)
        self.steps += 1
        if self.steps % self.period == 0:
            self.meet()
        return result

    @torch.no_grad()
    def meet(self):
        for parameter, anchor, momentum in zip(self.parameters, self.anchor, self.momentum, strict=True):
            change = self.all_reduce(parameter - anchor)
            momentum.mul_(0.9).add_(change)
            anchor.add_(momentum, alpha=0.7)
            parameter.copy_(anchor)

    def state_dict(self):
        momentum = [self.all_reduce(values.clone()) for values in self.momentum]
        ranks = self.all_gather(torch.tensor(float(self.global_rank))).tolist()
        self.fail("state_dict")
        extra = object() if self.trouble == "unsafe" and self.global_rank == 1 else None
        return {"momentum": momentum, "anchor": self.anchor, "steps": self.steps, "ranks": ranks, "extra": extra}

    def load_state_dict(self, state):
        self.given += 1
        self.barrier("load_state_dict")
        self.momentum = [values.clone() for values in state["momentum"]]
        self.anchor = [values.clone() for values in state["anchor"]]
        assert state["ranks"] == [0.0, 1.0]
        if self.given == 1:  # the way back is taken
            self.fail("load_state_dict")
        self.steps = state["steps"]

    def fail(self, where):
        if self.trouble == where and self.global_rank == 1:
            raise RuntimeError("not on this rank")
        if self.trouble == f"collective {where}":
            raise CollectiveError("shapes that differ")

    def kept(self):
        return [self.steps, [values.tolist() for values in self.momentum], [values.tolist() for values in self.anchor]]


class Counting(ParallelStrategy):
    """Keeps nothing; counts what a save costs."""

    def __init__(self):
        super().__init__()
        self.decisions = self.broadcasts = 0

    def reduce_boolean_decision(self, decision, all=True):
        self.decisions += 1
        return super().reduce_boolean_decision(decision, all)

    def broadcast(self, obj, src=0):
        self.broadcasts += 1
        return super().broadcast(obj, src)

    def counts(self):
        return [self.decisions, self.broadcasts]


class CountingOneThatKeeps(Counting):
    def state_dict(self):
        return {"rank": self.global_rank, f"only on {self.global_rank}": torch.ones(1)}

    def load_state_dict(self, state):
        self.loaded = [state["rank"], sorted(state)]


class Fickle(nn.Linear):
    """Its state can't be had, or can't be restored."""

    def __init__(self):
        super().__init__(2, 2)
        self.fails = ""

    def get_extra_state(self):
        if self.fails == "get":
            raise RuntimeError("no extra state")
        return {}

    def set_extra_state(self, state):
        if self.fails == "set":
            raise RuntimeError("no extra state")


def run_of(strategy, plugins):
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy, plugins=plugins)
    fabric.launch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return fabric, model, optimizer


def train(fabric, model, optimizer, steps):
    for step in steps:
        torch.manual_seed(100 * step + fabric.global_rank)
        optimizer.zero_grad()
        fabric.backward(model(torch.randn(5, 3)).square().mean())
        optimizer.step()


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


for kind in ("torch", "sharded"):
    here = folder / kind
    straight = Outer()
    fabric, model, optimizer = run_of(straight, kind)
    train(fabric, model, optimizer, range(3))
    rank = fabric.global_rank
    state = {"model": model, "optimizer": optimizer}
    before = straight.kept()
    fabric.save(here / "a", state)
    handle = fabric.save_async(here / "background", state)
    seen[f"{kind}: saving changes nothing"] = straight.kept() == before
    train(fabric, model, optimizer, range(3, 9))
    handle.wait()

    for name in ("a", "background"):
        resumed = Outer()
        second, other, other_optimizer = run_of(resumed, kind)
        second.load(here / name, {"model": other, "optimizer": other_optimizer})
        restored = resumed.kept() == before
        train(second, other, other_optimizer, range(3, 9))
        seen[f"{kind}: {name} goes on"] = [
            restored,
            torch.equal(weights(model), weights(other)),
            resumed.kept() == straight.kept(),
        ]
        second.close()

    # --- one rank fails while saving
    for trouble in ("state_dict", "unsafe"):
        straight.trouble = trouble
        seen[f"{kind}: {trouble} on rank 1"] = outcome(fabric.save, here / "b", state)
        seen[f"{kind}: {trouble} on rank 1, in the background"] = outcome(fabric.save_async, here / "b", state)
    straight.trouble = ""
    fickle = fabric.setup(Fickle())
    fickle_state = {"model": fickle, "optimizer": optimizer}
    fabric.save(here / "fickle", fickle_state)
    fickle.fails = "get" if rank == 1 else ""
    seen[f"{kind}: a module on rank 1"] = outcome(fabric.save, here / "b", fickle_state)
    fabric.barrier()
    seen[f"{kind}: files"] = sorted(path.name for path in here.iterdir())

    # --- one rank fails while loading
    straight.given, now, changed = 0, straight.kept(), weights(model)
    for trouble, calls in (("load_state_dict", 2), ("state_dict", 0), ("collective load_state_dict", 1)):
        straight.trouble, straight.given = trouble, 0
        seen[f"{kind}: load, {trouble} on rank 1"] = outcome(fabric.load, here / "a", state)
        straight.trouble = ""
        seen[f"{kind}: load, {trouble}: as it was"] = [
            straight.given == calls,
            "collective" in trouble or straight.kept() == now,
            torch.equal(weights(model), changed),
        ]
        straight.steps = now[0]
        straight.momentum, straight.anchor = ([torch.tensor(values) for values in kept] for kept in now[1:])
    straight.given, fickle.fails = 0, "set" if rank == 1 else ""
    seen[f"{kind}: load, a module on rank 1"] = outcome(fabric.load, here / "fickle", fickle_state)
    seen[f"{kind}: load, a module: as it was"] = [straight.given == 0, straight.kept() == now]
    fabric.close()

    # --- what it costs, and whose is saved
    counts = []
    for strategy in (Counting(), CountingOneThatKeeps()):
        fabric, model, optimizer = run_of(strategy, kind)
        strategy.decisions = strategy.broadcasts = 0
        fabric.save(here / "counted", {"model": model, "optimizer": optimizer})
        counts.append(strategy.counts())
        if isinstance(strategy, CountingOneThatKeeps):
            fabric.load(here / "counted", {"model": model, "optimizer": optimizer})
            seen[f"{kind}: rank 0's is kept"] = strategy.loaded
        fabric.close()
    seen[f"{kind}: counts"] = counts


class Sharded(CountingOneThatKeeps):
    def state_dict(self):
        mesh = init_device_mesh("cpu", (2,))
        return {"outer": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}


for kind in ("torch", "sharded"):
    fabric, model, optimizer = run_of(Sharded(), kind)
    seen[f"{kind}: sharded"] = outcome(fabric.save, folder / kind / "c", {"model": model, "optimizer": optimizer})
    fabric.close()
report(json.loads(json.dumps(seen)))
