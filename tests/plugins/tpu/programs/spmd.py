"""SPMD on four virtual devices of the CPU."""

import sys

import torch
import torch_xla
from common import Plain, distance, loader, report, set_up, train, values

from poplin import Fabric
from poplin_tpu.spmd import XLASPMDStrategy

folder = sys.argv[1]
results = {}


def shardings(model):
    return [torch_xla._XLAC._get_xla_sharding_spec(parameter) for parameter in model.parameters()]


def run(strategy):
    with Fabric(accelerator="xla", devices=4, strategy=strategy) as fabric:
        model, optimizer = set_up(fabric, Plain)
        train(fabric, model, optimizer, epochs=2)
        place = [fabric.world_size, fabric.strategy.data_world_size]
        batch = next(iter(fabric.setup_dataloaders(loader())))[0]
        fabric.save(f"{folder}/spmd.ckpt", {"model": model, "optimizer": optimizer})
        fabric.load(f"{folder}/spmd.ckpt", {"model": model, "optimizer": optimizer})
        sharded = shardings(model)
        states = torch_xla._XLAC._get_xla_sharding_spec(optimizer.state[model.first.weight]["exp_avg"])
        return values(model.state_dict()), place, torch_xla._XLAC._get_xla_sharding_spec(batch), sharded, states


def cpu():
    with Fabric(accelerator="cpu", devices=1) as fabric:
        model, optimizer = set_up(fabric, Plain)
        train(fabric, model, optimizer, epochs=2)
        return values(model.state_dict())


four, results["place"], results["batch"], results["parameters"], results["states"] = run("xla_spmd")
results["file"] = distance(values(torch.load(f"{folder}/spmd.ckpt")["model"]), four)
copies, _, _, results["with copies"], _ = run(XLASPMDStrategy(mesh_shape=(2, 2)))
whole, _, _, results["small ones whole"], _ = run(XLASPMDStrategy(min_size=1000))
single = cpu()
results["distances"] = [distance(one, single) for one in (four, copies, whole)]
try:
    Fabric(accelerator="xla", devices=4, strategy=XLASPMDStrategy(mesh_shape=(3,)))
except Exception as error:
    results["mesh"] = f"{type(error).__name__}: {error}"
report(**results)
