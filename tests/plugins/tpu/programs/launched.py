"""Processes of torch_xla (one of them, on the CPU): collectives, the strategies `xla` and `xla_fsdp`."""

import sys

import torch
import torch_xla  # noqa: F401
from common import Net, Plain, distance, report, set_up, train, values
from torch import nn

from poplin import Fabric
from poplin.errors import PoplinError


def collectives(fabric):
    tensor = torch.arange(4.0, device=fabric.device)
    host = torch.arange(4)
    strategy = fabric.strategy
    inputs = torch.ones(2, device=fabric.device, requires_grad=True)
    fabric.all_gather(inputs, sync_grads=True).sum().backward()
    results = {
        "place": [fabric.world_size, fabric.global_rank, fabric.local_rank, fabric.node_rank, fabric.launched],
        "all_gather": list(strategy.all_gather(tensor).shape),
        "gather of the host": [str(strategy.all_gather(host).device), strategy.all_gather(host).tolist()],
        "gradient": inputs.grad.tolist(),
        "sum": fabric.all_reduce(tensor.clone(), reduce_op="sum").tolist(),
        "mean of integers": [str(fabric.all_reduce(host).dtype), fabric.all_reduce(host).tolist()],
        "max of the host": strategy.all_reduce(host.clone(), reduce_op="max").tolist(),
        "product": strategy.all_reduce(tensor.clone(), reduce_op="product").tolist(),
        "broadcast": fabric.broadcast({"a": [1, tensor]})["a"][1].tolist(),
        "broadcast tensor": str(fabric.broadcast(tensor).device),
        "decisions": [strategy.reduce_boolean_decision(True), strategy.reduce_boolean_decision(False, all=False)],
    }
    fabric.barrier("here")
    with fabric.rank_zero_first():
        results["first"] = True
    for name, call in {
        "group": lambda: fabric.all_reduce(tensor, group=object()),
        "operation": lambda: fabric.all_reduce(tensor.clone(), reduce_op="bxor"),
        "unpicklable": lambda: fabric.broadcast(lambda: 0),
    }.items():
        try:
            call()
        except PoplinError as error:
            results[f"refused {name}"] = f"{type(error).__name__}: {error}"
    return results


def training(fabric, path, net, **options):
    """Train, save, train on; then load, and train on again: how far the two ends are from each other."""
    model, optimizer = set_up(fabric, net)
    train(fabric, model, optimizer, **options)
    optimizer.zero_grad()
    state = {"model": model, "optimizer": optimizer}
    fabric.save(path, state)
    train(fabric, model, optimizer)
    whole = values(fabric.strategy.get_module_state_dict(forward_of(model)))
    fabric.load(path, state)
    train(fabric, model, optimizer)
    return distance(whole, values(fabric.strategy.get_module_state_dict(forward_of(model))))


def work(fabric, folder, cases):
    """Everything that one launch shows: a process of torch_xla takes seconds to start."""
    results = {name: training(fabric, f"{folder}/{name}.ckpt", net, **options) for name, net, options in cases}
    results["norm"] = clipped_norm(fabric)
    if type(fabric.strategy).__name__ == "XLAStrategy":
        results |= collectives(fabric)
    return results


def cpu(path, net, **options):
    """The same training on the CPU beside what was saved, which is then loaded there."""
    with Fabric(accelerator="cpu", devices=1) as fabric:
        model, optimizer = set_up(fabric, net)
        train(fabric, model, optimizer, **options)
        saved = torch.load(path)
        result = distance(values(saved["model"]), values(model.state_dict()))
        fabric.load(path, {"model": model, "optimizer": optimizer})
        return result, [
            sorted(saved["optimizer"]["state"]),
            [list(g["params"]) for g in saved["optimizer"]["param_groups"]],
        ]


def forward_of(model):
    return model._poplin_link.forward_module


def clipped_norm(fabric):
    model, optimizer = set_up(fabric, Plain)
    inputs = torch.ones(3, 8, device=fabric.device)
    fabric.backward(model(inputs).sum())
    return fabric.clip_gradients(model, optimizer, max_norm=0.1).item()


def fails(fabric):
    raise KeyError("of mine")


def returns_a_lambda(fabric):
    return lambda: 0


def refusal(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    folder = sys.argv[1]
    results = {}

    def launch(function, *args, strategy="xla", **kwargs):
        return Fabric(accelerator="xla", strategy=strategy).launch(function, *args, **kwargs)

    cases = {
        "xla": [("plainly", Net, {}), ("with a closure", Net, {"closure": True})],
        "xla_fsdp": [
            ("shards", Plain, {}),
            ("shards accumulated", Plain, {"accumulate": 2}),
            ("shards with tied weights", Net, {"clip": None}),
        ],
    }
    for strategy, its_cases in cases.items():
        results[strategy] = launch(work, folder, its_cases, strategy=strategy)
        for name, net, options in its_cases:
            results[f"{name} beside the CPU"], results[f"{name}: states"] = cpu(f"{folder}/{name}.ckpt", net, **options)
    with Fabric(accelerator="cpu", devices=1) as fabric:
        results["norm"] = clipped_norm(fabric)
    results["error"] = refusal(lambda: launch(fails))
    results["result"] = refusal(lambda: launch(returns_a_lambda))
    results["argument"] = refusal(lambda: launch(collectives, lambda: 0))
    fabric = Fabric(accelerator="xla", strategy="xla")
    results["no function"] = refusal(fabric.launch)
    results["not launched"] = refusal(lambda: fabric.setup(nn.Linear(1, 1)))
    fabric.close()
    report(**results)
