"""Run by each of four ranks: Fabrics whose meshes of two by two are equal, at once and one after the other."""

import os
import time

import torch
import torch.distributed as dist
from models import PLAN, STEPS, adamw, data, plain, seeded
from torch import nn

from poplin import Fabric
from poplin.strategies import ModelParallelStrategy, ParallelStrategy
from poplin.testing import error_of, report
from poplin.wrappers import unwrap

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
REFERENCE = plain(clip=None)[0]
TIMEOUT = 3


class Training:
    def __init__(self, timeout=60):
        strategy = ModelParallelStrategy(plan=PLAN, tensor_parallel_size=2, timeout=timeout)
        self.fabric = Fabric(accelerator="cpu", devices=WORLD, strategy=strategy)
        self.fabric.launch()
        model = seeded()
        self.model, self.optimizer = self.fabric.setup(model, adamw(model.parameters()))

    def steps(self, start, end):
        strategy = self.fabric.strategy
        for words, targets in data()[start:end]:
            words, targets = (one.chunk(strategy.data_world_size)[strategy.data_rank] for one in (words, targets))
            self.optimizer.zero_grad()
            self.fabric.backward(nn.functional.cross_entropy(self.model(words), targets))
            self.optimizer.step()

    def end(self):
        """How far it is from a training in one process, once its moments have been gathered, too."""
        strategy = self.fabric.strategy
        names = {parameter: name for name, parameter in unwrap(self.model).named_parameters()}
        strategy.get_optimizer_state(self.optimizer.optimizer, names)
        found = strategy.get_module_state_dict(self.model._forward_module)
        self.fabric.close()
        expected = REFERENCE.state_dict()
        return max([(value - expected[name]).abs().max().item() for name, value in found.items()] or [0.0])


one, other = Training(), Training()
one.steps(0, STEPS)
other.steps(0, 2)
out = {"the first of two": one.end()}
other.steps(2, STEPS)
out["the second of two"] = other.end()

with Fabric(accelerator="cpu", devices=WORLD, strategy=ParallelStrategy(timeout=60)) as fabric:
    fabric.launch()
    dist.new_group([0, 1])  # so the groups of the mesh are not called as those before
    later = Training()
    later.steps(0, STEPS)
    out["a later one"] = later.end()

# last, because it leaves a process group that is of no use any more
strategy = Training(timeout=TIMEOUT).fabric.strategy
if RANK == WORLD - 1:
    time.sleep(2 * TIMEOUT)
else:
    out["without the last rank"] = error_of(lambda: strategy.all_reduce(torch.ones(1), group=strategy.data_group))
report(out)
