"""Moving a module where torch has to make new parameters: what was tied stays tied."""

import torch
from torch import nn

from poplin import Fabric
from poplin.strategies import SingleDeviceStrategy


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.block = nn.Sequential(nn.Linear(4, 4))
        self.block[0].bias = self.first.bias


def test_tied_parameters_stay_tied():
    module = Tied()
    old = module.first.weight
    strategy = SingleDeviceStrategy(device=torch.device("meta"))  # whose tensors can't stand in a CPU's parameter
    strategy.module_to_device(module)
    assert module.first.weight is not old
    assert module.first.weight.is_meta
    assert module.second.weight is module.first.weight
    assert module.block[0].bias is module.first.bias
    assert len(list(module.parameters())) == 3


def test_where_nothing_has_to_be_made_everything_is_what_it_was():
    module = Tied()
    before = list(module.parameters())
    with Fabric(accelerator="cpu", devices=1) as fabric:
        assert fabric.to_device(module) is module
    assert all(one is other for one, other in zip(module.parameters(), before, strict=True))
