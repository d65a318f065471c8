"""Run by test_ranks.py in two processes: what each rank sees when one of them fails."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from outcomes import outcome
from torch import nn

from poplin import Fabric
from poplin.testing.ranks import report

folder = Path(sys.argv[1])
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
rank = fabric.global_rank
seen = {}


def make(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    return fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.1))


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        fabric.backward(model(torch.randn(5, 3)).square().mean())
        optimizer.step()


def files():
    fabric.barrier("files")
    return sorted(path.name for path in folder.iterdir())


class PerRank:
    per_rank_state = True

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Failing(PerRank):
    per_rank_state = False

    def __init__(self, value, saving=False, loading=False):
        super().__init__(value)
        self.saving, self.loading = saving, loading

    def state_dict(self):
        if self.saving:
            raise RuntimeError("no state on this rank")
        return super().state_dict()

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.loading and state["value"] == 1:
            raise RuntimeError("not here")


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


model, optimizer = make(0)
train(model, optimizer)
fabric.save(folder / "a.ckpt", {"model": model, "optimizer": optimizer, "per_rank": PerRank(rank), "fabric": fabric})
noise = torch.rand(3)
other, other_optimizer = make(1)
per_rank = PerRank(None)
fabric.load(folder / "a.ckpt", {"model": other, "optimizer": other_optimizer, "per_rank": per_rank, "fabric": fabric})
seen["restored"] = [
    torch.equal(weights(model), weights(other)),
    repr(optimizer.state_dict()) == repr(other_optimizer.state_dict()),
    per_rank.value == rank,
    torch.equal(noise, torch.rand(3)),
]
if rank == 0:
    data = torch.load(folder / "a.ckpt", weights_only=True)
    seen["names"] = [list(data["model"]), data["optimizer"]["param_groups"][0]["params"]]
seen["noise"] = noise.tolist()

# --- one rank fails while saving
seen["state_dict fails on rank 1"] = outcome(
    fabric.save, folder / "b.ckpt", {"model": model, "bad": Failing(1, saving=rank == 1)}
)
seen["unsafe on rank 1"] = outcome(fabric.save, folder / "b.ckpt", {"x": object() if rank == 1 else 1})
seen["other objects on rank 1"] = outcome(
    fabric.save, folder / "b.ckpt", {"model": model} if rank == 0 else {"model": model, "more": Failing(1)}
)
(folder / "is_a_folder").mkdir(exist_ok=True)
seen["rank 0 can't write"] = outcome(fabric.save, folder / "is_a_folder", {"model": model})
seen["wrong argument on both"] = outcome(fabric.save, folder / "b.ckpt", [model])
seen["files after failures"] = files()

# --- rank 0's path counts
fabric.save(folder / f"from-{rank}.ckpt", {"step": 1})
seen["files after one path each"] = files()

# --- one rank fails while loading
fabric.save(folder / "c.ckpt", {"model": model, "thing": Failing(1)})
before, thing = weights(other) + 1, Failing(7, loading=rank == 1)
with torch.no_grad():
    for parameter in other.parameters():
        parameter.add_(1)
seen["load fails on rank 1"] = outcome(fabric.load, folder / "c.ckpt", {"model": other, "thing": thing})
seen["unchanged"] = [torch.allclose(before, weights(other)), thing.value]
seen["not there on rank 1"] = outcome(fabric.load, folder / ("a.ckpt" if rank == 0 else "no.ckpt"), {"model": other})

# --- in the background
handle = fabric.save_async(folder / "d.ckpt", {"model": model, "optimizer": optimizer})
then = weights(model).clone()
train(model, optimizer)
handle.wait()
fabric.load(folder / "d.ckpt", {"model": other})
seen["state at the call"] = torch.equal(weights(other), then) and not torch.equal(weights(model), then)
handle = fabric.save_async(folder / "is_a_folder", {"model": model})
seen["background failure at wait"] = outcome(handle.wait)
fabric.save(folder / "e.ckpt", {"step": 1})
fabric.save_async(folder / "is_a_folder", {"model": model})
seen["background failure at the next save"] = outcome(fabric.save, folder / "e.ckpt", {"step": 2})
fabric.save(folder / "e.ckpt", {"step": 3})

# --- another number of processes then
if rank == 0:
    torch.save({"x": {"__per_rank__": [{"value": 1}, {"value": 2}, {"value": 3}]}}, folder / "three.ckpt")
fabric.barrier()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    value = PerRank(None)
    fabric.load(folder / "three.ckpt", {"x": value})
seen["three to two"] = [value.value, [str(warning.message) for warning in caught if "process" in str(warning.message)]]
fabric.save_async(folder / "last.ckpt", {"model": model})
fabric.close()
seen["files"] = sorted(os.listdir(folder))
report(json.loads(json.dumps(seen)))
