"""8-bit layers in a model that FSDP shards: they train as under DDP, and move between the two."""

import pytest

from poplin.testing.ranks import run_ranks

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]

SCRIPT = """
import sys
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from poplin import Fabric
from poplin.testing.ranks import report

name, folder = sys.argv[1:]


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 10)
        )


def fabric_of(strategy):
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy, precision=name)
    fabric.launch()
    return fabric


def steps(fabric, model, optimizer, count):
    generator = torch.Generator().manual_seed(fabric.global_rank)
    inputs, targets = torch.randn(32, 16, generator=generator), torch.arange(32) % 10
    losses = []
    for _ in range(count):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach()).item())
    return losses


def start(fabric, meta=False):
    torch.manual_seed(7)
    if meta:
        with fabric.init_module():
            model = Model()
    else:
        model = Model()
    on_meta = all(weight.is_meta for weight in model.parameters())
    model = fabric.setup_module(model)
    return model, fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)), on_meta


out = {}
with fabric_of("ddp") as fabric:
    model, optimizer, _ = start(fabric)
    out["ddp"] = steps(fabric, model, optimizer, 4)
    fabric.save(folder + "/ddp.ckpt", {"model": model, "optimizer": optimizer})
    out["ddp goes on"] = steps(fabric, model, optimizer, 2)
    made, _, _ = start(fabric, meta=True)
    expected = {key: value.clone() for key, value in made.state_dict().items()}
with fabric_of("fsdp") as fabric:
    model, optimizer, _ = start(fabric)
    out["kinds"] = sorted({type(layer).__name__ for layer in model.modules() if "Linear" in type(layer).__name__})
    out["sharded"] = all(isinstance(weight, DTensor) for weight in model.parameters())
    out["fsdp"] = steps(fabric, model, optimizer, 4)
    fabric.load(folder + "/ddp.ckpt", {"model": model, "optimizer": optimizer})
    out["fsdp goes on"] = steps(fabric, model, optimizer, 2)
    made, _, out["on meta"] = start(fabric, meta=True)
    found = {key: value.full_tensor() for key, value in made.state_dict().items()}
    out["same values"] = [key for key, value in expected.items() if torch.equal(found[key], value)] == list(expected)
report(out)
"""


@pytest.mark.parametrize("name", ["torchao-float8", "torchao-int8"])
def test_training_equals_ddp(name, tmp_path):
    for told in run_ranks(SCRIPT, 2, [name, str(tmp_path)], timeout=250):
        assert len(told["kinds"]) == 2, told  # the last layer doesn't fit
        assert told["sharded"]
        assert told["ddp"][-1] < told["ddp"][0] - 0.1
        assert told["fsdp"] == pytest.approx(told["ddp"], rel=1e-3)
        assert told["fsdp goes on"] == pytest.approx(told["ddp goes on"], rel=1e-3)
        assert told["on meta"]
        assert told["same values"]
