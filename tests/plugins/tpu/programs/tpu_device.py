"""The general strategies on a device called `tpu`: one process, or two of them by `ddp` or `fsdp`."""

import os
import sys

import torch
from common import Net, Plain, distance, loader, report, set_up, train, values

from poplin import Fabric

folder, what = sys.argv[1:3]


def run(accelerator, net=Net, **options):
    training = {name: options.pop(name) for name in ("closure", "accumulate", "epochs") if name in options}
    with Fabric(accelerator=accelerator, devices=1, **options) as fabric:
        model, optimizer = set_up(fabric, net)
        loss = train(fabric, model, optimizer, **training)
        return loss, values(model.state_dict())


def precise(accelerator, precision):
    """The dtype within, and the loss of the last step; of all operations the test device autocasts linear alone."""
    with Fabric(accelerator=accelerator, devices=1, precision=precision) as fabric:
        model, optimizer = set_up(fabric, Plain)
        dtypes = []
        model.first.register_forward_hook(lambda module, inputs, output: dtypes.append(str(output.dtype)))
        for inputs, targets in fabric.setup_dataloaders(loader()):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
        return dtypes[0], loss.item()


def one_process():
    results = {}
    for name, options in {"plain": {}, "closure": {"closure": True}, "accumulated": {"accumulate": 2}}.items():
        results[name] = distance(run("tpu", **options)[1], run("cpu", **options)[1])
    for precision in ("bf16-mixed", "bf16-true", "16-mixed"):
        results[precision] = [precise("tpu", precision), precise("cpu", precision)]
    with Fabric(accelerator="tpu", devices=1, strategy="single_xla") as fabric:
        results["redirected"] = type(fabric.strategy).__name__
        model, optimizer = set_up(fabric)
        train(fabric, model, optimizer)
        results["device"] = [str(fabric.device), str(next(model.parameters()).device)]
        results["tied"] = model.first.weight is model.second.weight
        fabric.save(f"{folder}/tpu.ckpt", {"model": model, "optimizer": optimizer, "fabric": fabric})
        train(fabric, model, optimizer)
        whole = values(model.state_dict())
        results["batch"] = str(next(iter(fabric.setup_dataloaders(loader())))[0].device)
        fabric.seed_everything(3, verbose=False)
        first = torch.randn(4, device=fabric.device).cpu()
        fabric.seed_everything(3, verbose=False)
        results["seeded"] = torch.equal(first, torch.randn(4, device=fabric.device).cpu())
        with fabric.init_module():
            results["made"] = str(next(Net().parameters()).device)
        compiled = fabric.setup(torch.compile(Plain(), backend="eager"))
        results["compiled"] = str(compiled(torch.zeros(2, 8, device=fabric.device)).device)
    for accelerator in ("tpu", "cpu"):
        with Fabric(accelerator=accelerator, devices=1) as fabric:
            model, optimizer = set_up(fabric)
            fabric.load(f"{folder}/tpu.ckpt", {"model": model, "optimizer": optimizer})
            train(fabric, model, optimizer)
            results[f"resumed on {accelerator}"] = distance(values(model.state_dict()), whole)
    return results


def two_processes(strategy):
    results = {}
    with Fabric(accelerator="tpu", devices=2, strategy=strategy) as fabric:
        fabric.launch()
        results["explain"] = fabric.explain()
        results["strategy"] = type(fabric.strategy).__name__
        results["variables"] = os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
        results["backend"] = torch.distributed.get_backend()
        rank = torch.tensor(float(fabric.global_rank), device=fabric.device)
        results["device"] = str(fabric.device)
        results["collectives"] = [
            fabric.all_gather(rank).tolist(),
            fabric.all_reduce(rank.clone(), reduce_op="sum").item(),
            fabric.broadcast(rank.clone() + 5, src=1).item(),
            fabric.broadcast({"rank": fabric.global_rank}, src=1)["rank"],
        ]
        fabric.barrier()
        model, optimizer = set_up(fabric, Plain)
        train(fabric, model, optimizer)
        fabric.save(f"{folder}/{strategy}.ckpt", {"model": model, "optimizer": optimizer})
        fabric.load(f"{folder}/{strategy}.ckpt", {"model": model, "optimizer": optimizer})
        first = fabric.is_global_zero
    if not first:
        return None
    with Fabric(accelerator="cpu", devices=1) as fabric:  # the batches of both ranks at once
        model, optimizer = set_up(fabric, Plain)
        train(fabric, model, optimizer, batch_size=16)
        single = values(model.state_dict())
        fabric.load(f"{folder}/{strategy}.ckpt", {"model": model, "optimizer": optimizer})
        results["distance"] = distance(values(model.state_dict()), single)
    return results


results = one_process() if what == "one" else two_processes(what)
if results is not None:
    report(**results)
