"""Modules made on the meta device get the values that they would have had, whatever their constructors do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from poplin_fsdp.materialise import Deferral, recorded

CPU = torch.device("cpu")


class Everything(nn.Module):
    """Custom initialisation of every kind, ties, copies, values of Python's and NumPy's, and a look at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear, self.norm = nn.Embedding(10, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.convolution, self.attention, self.recurrent = (
            nn.Conv1d(2, 4, 3),
            nn.MultiheadAttention(8, 2),
            nn.LSTM(4, 4),
        )
        self.transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.noise = nn.Parameter(torch.randn(3, 4) * 0.02)
        self.values = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.scalar = nn.Parameter(torch.tensor(2.5))
        self.register_buffer("positions", torch.sin(torch.arange(12).view(3, 4) * 0.1))
        self.register_buffer("numpy", torch.from_numpy(np.arange(3.0)))
        self.register_buffer("converted", torch.as_tensor(np.arange(3.0), dtype=torch.float32))
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
        self.apply(self._fill)
        with torch.no_grad():
            self.linear.weight[0].zero_()
            self.linear.weight.mul_(2)
            self.linear.bias.copy_(torch.arange(8.0))
        nn.init.trunc_normal_(self.convolution.weight, std=0.02)
        nn.init.orthogonal_(self.transformer.layers[0].linear1.weight)
        nn.init.sparse_(self.transformer.layers[1].linear1.weight, 0.5)
        nn.init.dirac_(self.convolution.weight[:2])
        self.clone = nn.Parameter(self.linear.weight.detach().clone())
        self.listed = nn.ParameterList([torch.rand(2) for _ in range(2)])
        self.copied = copy.deepcopy(self.linear)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.whole = nn.Parameter(torch.randint(0, 9, (3,)), requires_grad=False)

    def _fill(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)


@pytest.fixture
def deferral():
    before = torch.get_rng_state()
    yield Deferral(CPU, (torch.get_rng_state, torch.set_rng_state))
    torch.set_rng_state(before)


def finish(deferral, module):
    deferral.finish(deferral.start(module), lambda tensor: CPU)


def same(one, other):
    theirs = other.state_dict()
    return [name for name, value in one.state_dict().items() if not torch.equal(value, theirs[name])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_ties_and_the_generator_are_as_if_it_were_made_for_real(deferral, dtype):
    torch.manual_seed(7)
    real = Everything().to(dtype)
    after = torch.rand(3)
    torch.manual_seed(7)
    with deferral.making(empty=False):
        made = Everything()
    assert all(parameter.is_meta for parameter in made.parameters())
    assert made.rates == real.rates
    with recorded(made, CPU):
        made.to(dtype)  # as a precision does
    finish(deferral, made)
    assert same(made, real) == []
    assert made.head.weight is made.embedding.weight
    assert [p.requires_grad for p in made.parameters()] == [p.requires_grad for p in real.parameters()]
    assert torch.equal(torch.rand(3), after)


def test_modules_of_several_contexts_are_set_up_in_any_order(deferral):
    torch.manual_seed(1)
    first, second, after = nn.Linear(3, 3), nn.Linear(3, 3), torch.rand(1)
    torch.manual_seed(1)
    with deferral.making(empty=False):
        one = nn.Linear(3, 3)
    with deferral.making(empty=False):
        two = nn.Linear(3, 3)
    finish(deferral, two)
    finish(deferral, one)
    assert same(one, first) == same(two, second) == []
    assert torch.equal(torch.rand(1), after)


def test_what_somebody_drew_in_between_is_no_part_of_it(deferral):
    torch.manual_seed(1)
    with deferral.making(empty=False):
        one = nn.Linear(3, 3)
    mine = torch.rand(2)
    with deferral.making(empty=False):
        two = nn.Linear(3, 3)
    finish(deferral, one)
    finish(deferral, two)
    torch.manual_seed(1)
    assert same(one, nn.Linear(3, 3)) == []
    torch.manual_seed(1)
    assert torch.equal(torch.rand(2), mine)
    assert same(two, nn.Linear(3, 3)) == []


def test_empty_weights_are_not_drawn(deferral):
    torch.manual_seed(1)
    with deferral.making(empty=True):
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    finish(deferral, module)
    assert not module[0].weight.is_meta
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), expected)


def test_modules_from_elsewhere_are_reset(deferral):
    def make():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))

    torch.manual_seed(2)
    real = make()
    with torch.device("meta"):
        made = make()
    torch.manual_seed(2)
    finish(deferral, made)
    assert same(made, real) == []


class Custom(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear, self.made = nn.Linear(2, 2), make()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: float(torch.rand(1)), "looks at random values"),
        (lambda: torch.rand(2, device="cpu"), "random numbers on the CPU"),
        (lambda: nn.Parameter(torch.empty(3)), "the module itself (Custom): made"),
    ],
)
def test_what_would_be_another_value_is_refused(deferral, make, word):
    def make_and_set_up():
        with deferral.making(empty=False):
            module = Custom(make)
        deferral.start(module)

    with pytest.raises(RuntimeError, match="init_module") as caught:
        make_and_set_up()
    assert word in str(caught.value)


def test_values_that_changed_since_are_refused(deferral):
    given = torch.ones(2, device="cpu")
    with deferral.making(empty=False):
        module = nn.Linear(2, 2)
        with torch.no_grad():
            module.bias.copy_(given)
    given.add_(1)
    with pytest.raises(RuntimeError, match="changed since"):
        finish(deferral, module)
