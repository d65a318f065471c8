"""Two processes, each with half of every batch. Each writes a report into the folder that it is given."""

import json
import sys
from pathlib import Path

import torch
import training

from poplin import Fabric

folder, precision = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
fabric = (
    Fabric(precision=precision) if "--bare" in sys.argv else Fabric(accelerator="acme", devices=2, precision=precision)
)
if not fabric.launched:
    fabric.launch()
rank = fabric.global_rank
model, optimizer = training.make()
if rank == 1:  # everyone starts as rank 0 does
    with torch.no_grad():
        model.first.weight.zero_()
model, optimizer = fabric.setup(model, optimizer)
half = training.BATCH // 2
parts = [(x[rank * half : (rank + 1) * half], y[rank * half : (rank + 1) * half]) for x, y in training.batches()]
report = {"device": str(fabric.device), "strategy": type(fabric.strategy).__name__, "explained": fabric.explain()}
report["end"] = training.train(fabric, model, optimizer, parts)
mine = torch.full((2,), float(rank), device=fabric.device)
gathered = fabric.all_gather(mine)
report["gathered"] = [str(gathered.device), gathered.tolist()]
report["reduced"] = fabric.all_reduce(torch.tensor([rank + 1], device=fabric.device), reduce_op="sum").tolist()
report["told"] = fabric.broadcast({"at": torch.ones(1, device=fabric.device)} if rank == 0 else None)["at"].device.type
weight = torch.ones(2, device=fabric.device, requires_grad=True)
(fabric.all_gather(weight * (rank + 1), sync_grads=True).sum()).backward()
report["gradient through gather"] = weight.grad.tolist()
try:
    loss = model(fabric.to_device(parts[0][0])).sum()
    loss.backward()
    report["plain backward"] = "went through"
except Exception as error:
    report["plain backward"] = f"{type(error).__name__}: {error}"
optimizer.zero_grad()
with fabric.no_backward_sync(model):
    fabric.backward(model(fabric.to_device(parts[0][0])).square().sum())
local = fabric.all_gather(model.second.weight.grad)
report["local gradients differ"] = not torch.equal(local[0], local[1])
fabric.save(folder / f"two-{precision}.ckpt", {"model": model, "optimizer": optimizer})
(folder / f"rank{rank}.json").write_text(json.dumps(report))
fabric.close()
