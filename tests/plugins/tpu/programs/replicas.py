"""Two replicas of a stand-in for torch_xla: what one replica can't show."""

import sys
from pathlib import Path

import torch
from common import Net, distance, loader, report, values

from poplin import Fabric
from poplin.errors import PoplinError


def collectives(fabric, folder):
    rank = fabric.global_rank
    strategy = fabric.strategy
    one = torch.tensor([1.0, 2.0]) + 10 * rank
    weight = torch.full((2,), float(rank + 1), requires_grad=True)
    gathered = fabric.all_gather(weight, sync_grads=True)
    (gathered * torch.tensor([[1.0], [3.0]])).sum().backward()
    results = {
        "place": [fabric.world_size, rank, fabric.local_rank, fabric.node_rank, fabric.is_global_zero],
        "data": [strategy.data_rank, strategy.data_world_size],
        "all_gather": fabric.all_gather(one).tolist(),
        "gradient": weight.grad.tolist(),
        "mean": fabric.all_reduce(one.clone()).tolist(),
        "sum": fabric.all_reduce(one.clone(), reduce_op="sum").tolist(),
        "max": fabric.all_reduce(one.clone(), reduce_op="max").tolist(),
        "mean of integers": fabric.all_reduce(torch.tensor([rank])).tolist(),
        "broadcast": fabric.broadcast({"rank": rank, "tensor": one}, src=1)["tensor"].tolist(),
        "decisions": [
            strategy.reduce_boolean_decision(rank == 0),
            strategy.reduce_boolean_decision(rank == 0, all=False),
        ],
        "data of this rank": [int(batch[0][0].item()) for batch in fabric.setup_dataloaders(numbers())],
    }
    for name, call in {
        "shapes": lambda: fabric.all_gather(torch.zeros(1 + rank)),
        "barriers": lambda: fabric.barrier(f"of rank {rank}"),
        "unpicklable": lambda: fabric.broadcast(lambda: 0),
    }.items():
        try:
            call()
            results[f"refused {name}"] = ""
        except PoplinError as error:
            results[f"refused {name}"] = f"{type(error).__name__}: {error}"
    with fabric.rank_zero_first():
        results["first"] = (rank == 0) != Path(folder, "here").exists()
        Path(folder, "here").touch()
    try:
        with fabric.rank_zero_first():
            if rank == 0:
                raise KeyError("of rank 0")
    except Exception as error:
        results["first fails"] = f"{type(error).__name__}: {error}"
    parts = [None, None]
    torch.distributed.all_gather_object(parts, results)
    return parts


def numbers():
    data = torch.utils.data.TensorDataset(torch.arange(6.0).unsqueeze(1))
    return torch.utils.data.DataLoader(data, batch_size=1)


def train(fabric, batch_size=8, closure=False, accumulate=1):
    """Rank 0 starts with the values that everyone shall have."""
    torch.manual_seed(7 + fabric.global_rank)
    model = Net()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    batches = torch.utils.data.DataLoader(loader().dataset, batch_size=batch_size)
    for number, (inputs, targets) in enumerate(fabric.setup_dataloaders(batches)):

        def backward(inputs=inputs, targets=targets):
            loss = model.training_step(inputs, targets) / accumulate
            fabric.backward(loss)
            return loss

        if closure:
            optimizer.zero_grad()
            optimizer.step(backward)
            continue
        backward()
        if (number + 1) % accumulate == 0:
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


TRAININGS = {"plain": {}, "closure": {"closure": True}, "accumulated": {"accumulate": 2}}


def trainings(fabric, folder):
    done = {}
    for name, options in TRAININGS.items():
        model, optimizer = train(fabric, **options)
        mine = values(model.state_dict())
        other = fabric.broadcast(mine, src=1)
        fabric.save(f"{folder}/{name}.ckpt", {"model": model, "optimizer": optimizer})
        fabric.load(f"{folder}/{name}.ckpt", {"model": model, "optimizer": optimizer})
        done[name] = mine, distance(mine, other), distance(mine, values(model.state_dict()))
    return done


def left_out(fabric):
    """A step that is left out after clipping: the next gradients are averaged all the same."""
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1.0))
    start = model.weight.item()
    for steps in (False, True):
        fabric.backward(model(torch.ones(1, 1)).sum() * (fabric.global_rank + 1.0))
        fabric.clip_gradients(model, optimizer, max_norm=100.0)
        if steps:
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    fabric.backward(model(torch.ones(1, 1)).sum() * (fabric.global_rank + 1.0))
    optimizer.step()
    return fabric.all_gather(start - model.weight.detach()).flatten().tolist()


def everything(fabric, folder):
    return collectives(fabric, folder), trainings(fabric, folder), left_out(fabric)


def fails(fabric):
    if fabric.global_rank == 1:
        raise ValueError("of rank 1")
    return fabric.global_rank


if __name__ == "__main__":
    folder, results = sys.argv[1], {}
    fabric = Fabric(accelerator="xla")
    results["explain"] = fabric.explain()
    results["ranks"], done, results["left out"] = fabric.launch(everything, folder)
    fabric.close()
    for name, (state, apart, loaded) in done.items():
        with Fabric(accelerator="cpu", devices=1) as fabric:  # the batches of both replicas at once
            model, optimizer = train(fabric, batch_size=16, **TRAININGS[name])
            single = values(model.state_dict())
            fabric.load(f"{folder}/{name}.ckpt", {"model": model, "optimizer": optimizer})
            results[name] = [distance(state, single), apart, loaded, distance(values(model.state_dict()), state)]
    try:
        Fabric(accelerator="xla").launch(fails)
    except Exception as error:
        results["error"] = [f"{type(error).__name__}: {error}", getattr(error, "__notes__", [])]
    report(**results)
