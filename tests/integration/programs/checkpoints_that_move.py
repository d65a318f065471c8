"""Run by test_checkpoints_that_move.py: every strategy saves, and loads what stands in the folder already.

Arguments: the folder, the tests of the checkpoints, names of strategies that save, names of those that load.
"""

import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, sys.argv[2])

import torch
from sharding import differing, values
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from poplin import Fabric
from poplin.testing import report

folder, world = Path(sys.argv[1]), int(os.environ.get("WORLD_SIZE", 1))
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def strategy_of(name):
    from poplin.strategies import FSDPStrategy, ModelParallelStrategy
    from poplin_fsdp.tensor_parallel import TensorParallelStrategy

    if name == "fsdp":
        return FSDPStrategy(auto_wrap_policy={nn.Linear}, activation_checkpointing_policy={nn.Linear})
    if name == "hsdp":
        return FSDPStrategy(sharding_strategy="HYBRID_SHARD", device_mesh=(2, world // 2))
    if name == "full":
        return FSDPStrategy(state_dict_type="full")
    if name == "tp":
        return TensorParallelStrategy(plan=PLAN)
    if name == "2d":
        return ModelParallelStrategy(plan=PLAN, data_parallel_size=world // 2, tensor_parallel_size=2)
    return name


def make(seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.Linear(5, 1)]
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01 * (seed + 1), weight_decay=0.1)


def step(model, optimizer, times):
    """Gradients that an element has from its own value: the same bits in every layout."""
    for _ in range(times):
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = parameter.detach() * 0.3 + 0.1 * (index + 1)
        optimizer.step()


def reference(times):
    pair = make(0)
    step(*pair, times)
    return values(*pair)


def plain_names(found):
    return {name.replace("._checkpoint_wrapped_module", ""): value for name, value in found.items()}


seen = {}
warnings.simplefilter("ignore")
after_two, after_three = reference(2), reference(3)
for name in filter(None, sys.argv[3].split(",")):
    with Fabric(accelerator="cpu", devices=world, strategy=strategy_of(name)) as fabric:
        fabric.launch()
        model, optimizer = fabric.setup(*make(0))
        step(model, optimizer, 2)
        seen[f"{name}-{world} trains"] = differing(plain_names(values(model, optimizer)), after_two)
        fabric.save(folder / f"{name}-{world}", {"model": model, "optimizer": optimizer, "step": 2})
for name in filter(None, sys.argv[4].split(",")):
    with Fabric(accelerator="cpu", devices=world, strategy=strategy_of(name)) as fabric:
        fabric.launch()
        for path in sorted(folder.iterdir()):
            model, optimizer = fabric.setup(*make(3))
            state = {"model": model, "optimizer": optimizer, "step": 0}
            rest = fabric.load(path, state)
            wrong = differing(plain_names(values(model, optimizer)), after_two)
            step(model, optimizer, 1)
            wrong += differing(plain_names(values(model, optimizer)), after_three)
            if state["step"] != 2 or rest:
                wrong.append(f"step {state['step']}, {rest}")
            seen[f"{path.name} -> {name}-{world}"] = wrong
report(seen)
