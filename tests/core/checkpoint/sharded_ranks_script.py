"""Run by test_sharded_ranks.py in two processes: saves and loads between layouts, and what ranks see of failures."""

import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[2])))

import torch
from outcomes import outcome
from sharding import MeshStrategy, differing, full, make, reference, step, values
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

import poplin.checkpoint.sharded_save as sharded_save
from poplin import Fabric
from poplin.checkpoint import ShardedCheckpointIO
from poplin.testing import report

folder = Path(sys.argv[1])
expected = reference()
seen = {}


def fabric_with(layout, **kwargs):
    strategy = layout if layout == "ddp" else MeshStrategy(layout)
    if layout == "ddp":
        kwargs.setdefault("plugins", "sharded")
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy, **kwargs)
    fabric.launch()
    return fabric


class PerRank:
    per_rank_state = True

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": torch.tensor(self.value)}

    def load_state_dict(self, state):
        self.value = state["value"].item()


def trained(fabric, seed=0, times=2):
    model, optimizer = fabric.setup(*make(seed))
    step(model, optimizer, times)
    return model, optimizer


# --- between layouts

for layout in ("rows", "columns", "ddp"):
    with fabric_with(layout) as fabric:
        model, optimizer = trained(fabric)
        seen[f"{layout} trains as one process"] = differing(values(model, optimizer), expected)
        per_rank = PerRank(10 + fabric.global_rank)
        state = {"model": model, "optimizer": optimizer, "step": 7 + fabric.global_rank, "mine": per_rank}
        fabric.save(folder / layout, state)
with fabric_with("rows", plugins="torch") as fabric:
    model, optimizer = trained(fabric)
    mine = PerRank(10 + fabric.global_rank)
    fabric.save(folder / "file", {"model": model, "optimizer": optimizer, "step": 7, "mine": mine})
for layout in ("rows", "columns", "grid", "ddp"):
    with fabric_with(layout) as fabric:
        for name in ("rows", "columns", "ddp", "file", "single"):
            model, optimizer = fabric.setup(*make(3))
            state = {"model": model, "optimizer": optimizer, "step": 0, "mine": PerRank(0)}
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                rest = fabric.load(folder / name, state)
            wrong = differing(values(model, optimizer), expected)
            wanted = [7, 10 + fabric.global_rank] if name != "single" else [7, 10 if fabric.global_rank == 0 else 0]
            if [state["step"], state["mine"].value] != wanted or rest:
                wrong.append(f"{state['step']} {state['mine'].value} {rest}")
            if name == "rows":  # training goes on as if nothing had been
                step(model, optimizer, 1)
                again = make()
                step(*again)
                step(*again, 1)
                wrong += differing(values(model, optimizer), values(*again))
            seen[f"{name} -> {layout}"] = wrong

# --- what is agreed on, and what happens when one rank fails

fabric = fabric_with("rows")
rank = fabric.global_rank
model, optimizer = trained(fabric)
state = {"model": model, "optimizer": optimizer, "step": 7}


def files(path=folder):
    fabric.barrier("files")
    found = sorted(str(each.relative_to(path)) for each in path.rglob("*"))
    fabric.barrier("files, done")
    return found


def failing_on(culprit, function, *args):
    """``function`` while ``culprit`` can't write."""
    original = sharded_save.write_item

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    if rank == culprit:
        sharded_save.write_item = full_disk
    try:
        return outcome(function, *args)
    finally:
        sharded_save.write_item = original


before = files()
seen["rank 1 can't write"] = failing_on(1, fabric.save, folder / "new" / "deep", state)
seen["rank 0 can't write"] = failing_on(0, fabric.save, folder / "new" / "deep", state)
seen["rank 1 can't write over"] = failing_on(1, fabric.save, folder / "rows", state)
seen["a file is in the way"] = outcome(fabric.save, folder / "file", state)
seen["other objects"] = outcome(fabric.save, folder / "new", state if rank == 0 else {"model": model})
seen["unsafe on rank 0"] = outcome(fabric.save, folder / "new", {**state, "x": object()} if rank == 0 else state)
seen["files after failures"] = files() == before
seen["still there"] = fabric.load(folder / "rows", {**state, "mine": PerRank(0)})


def async_then_save():
    fabric.save_async(folder / "new", state)
    fabric.save(folder / "new", {"x": 1})  # of this, rank 1 writes nothing


seen["background failure"] = failing_on(1, lambda: fabric.save_async(folder / "new", state).wait())
seen["background failure at the next save"] = failing_on(1, async_then_save)
seen["files after background failures"] = files() == before

# a part that one rank only reads is corrupt
fabric.save(folder / "corrupt", state)
if rank == 0:
    manifest = json.loads((folder / "corrupt" / "poplin.json").read_text())
    entry = next(entry for entry in manifest["tensors"] if entry["name"] == "model.0.weight")
    number, _, _, data, *_ = next(chunk for chunk in entry["chunks"] if chunk[5][0] > 0)
    file = folder / "corrupt" / manifest["files"][number][0]
    content = bytearray(file.read_bytes())
    content[data] ^= 1
    file.write_bytes(content)
fabric.barrier()
other = fabric.setup(*make(3))
untouched = values(*other)
seen["corrupt for rank 1"] = outcome(fabric.load, folder / "corrupt", {"model": other[0], "optimizer": other[1]})
seen["corrupt: nothing was restored"] = differing(values(*other), untouched)
if rank == 1:
    (folder / "corrupt" / "poplin.json").unlink()
fabric.barrier()
seen["mismatch"] = outcome(fabric.load, folder / "rows", {"model": fabric.setup(nn.Linear(5, 8)), "step": 0})

# --- in the background

handle = fabric.save_async(folder / "async", state)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.to_local().zero_()
handle.wait()
other = fabric.setup(*make(3))
fabric.load(folder / "async", {"model": other[0], "optimizer": other[1]})
seen["async"] = differing(values(*other), expected)
first = fabric.save_async(folder / "twice", {"x": 1})
second = fabric.save_async(folder / "twice", {"x": 2})  # waits for the first
second.wait()
seen["async twice"] = fabric.load(folder / "twice")

# --- states of odd kinds

mesh = next(model.parameters()).device_mesh
mine = distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])
tiny = distribute_tensor(torch.ones(1, 3), mesh, [Shard(0)])
empty = distribute_tensor(torch.ones(0, 3), mesh, [Shard(0)])
odd = {"mine": mine, "list": [tiny, rank], "empty": empty, "plain": torch.full((2,), float(rank)), "r": {"rank": rank}}
if rank == 1:
    odd["r"]["more"] = 1
fabric.save(folder / "odd", odd)
back = fabric.load(folder / "odd")
seen["odd"] = [back["mine"].tolist(), back["list"][0].tolist(), back["list"][1], list(back["empty"].shape)]
seen["odd"] += [back["plain"].tolist(), back["r"]]
sharded = ShardedCheckpointIO()
parts = {"a": {"first": torch.zeros(2)}} if rank == 0 else {"a": {"second": torch.ones(2)}}
sharded.save_checkpoint(parts, folder / "parts")
found = sharded.load_checkpoint(folder / "parts")["a"]
seen["whole tensors on one rank each"] = {name: value.tolist() for name, value in found.items()}
sharded.teardown()
one, two = fabric.setup(make(0, tied=False)[0]), fabric.setup(make(1, tied=False)[0])
both = fabric.setup_optimizers(torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1, momentum=0.9))
for each in (one, two):
    for parameter in each.parameters():
        parameter.grad = distribute_tensor(torch.ones(parameter.shape), parameter.device_mesh, parameter.placements)
both.step()
fabric.save(folder / "two", {"one": one, "two": two, "both": both})
three, four = fabric.setup(make(2, tied=False)[0]), fabric.setup(make(3, tied=False)[0])
again = fabric.setup_optimizers(torch.optim.SGD([*three.parameters(), *four.parameters()], lr=0.2, momentum=0.9))
fabric.load(folder / "two", {"one": three, "two": four, "both": again})
pairs = list(zip([*one.parameters(), *two.parameters()], [*three.parameters(), *four.parameters()], strict=True))
buffers = [(both.state[a]["momentum_buffer"], again.state[b]["momentum_buffer"]) for a, b in pairs]
seen["two models, one optimizer"] = [torch.equal(full(a), full(b)) for a, b in [*pairs, *buffers]]
with fabric_with("rows", plugins="torch") as other_fabric:
    seen["sharded tensor into a file"] = outcome(other_fabric.save, folder / "no", {"mine": mine})
fabric.close()
report(seen)
