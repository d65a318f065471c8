"""Setup: the order of things, optimizers that follow their parameters, and what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from wrapper_doubles import (
    BF16Mixed,
    BF16True,
    EngineStrategy,
    FailingStrategy,
    Parts,
    ReplacingStrategy,
    ReplicaStrategy,
)

from poplin import errors
from poplin.strategies import SingleDeviceStrategy
from poplin.utilities.warnings import PossibleUserWarning
from poplin.wrappers import is_wrapped

X = torch.ones(2, 4)


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


def with_state(module, kind=torch.optim.Adam, **kwargs):
    """An optimizer that has stepped once."""
    optimizer = kind(module.parameters(), lr=0.1, **kwargs)
    module(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def moves(parts, model, optimizer):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    parts.backward(model(X).float().sum())
    optimizer.step()
    return [not torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True)]


# --- what is given and returned


def test_what_is_returned():
    parts, module = Parts(), tied()
    one, two = (torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(2))
    scheduler = StepLR(one, 1)
    model, first, second, same = parts.setup(module, one, two, scheduler=scheduler)
    assert model.module is module
    assert first.optimizer is one
    assert second.optimizer is two
    assert same is scheduler
    assert is_wrapped(parts.setup_module(tied()))
    assert parts.setups.modules == [model]
    assert parts.setups.optimizers == [first, second]
    assert parts.setups.wrapper_of(module) is parts.setups.wrapper_of(model) is model
    assert parts.setups.optimizer_wrapper_of(two) is second
    del model, first
    assert parts.setups.modules == []


def test_names_of_parameters():
    parts = Parts()
    module = nn.Linear(4, 1)
    model = parts.setup(module)
    assert parts.setups.parameter_names() == {module.weight: "weight", module.bias: "bias"}
    other = parts.setup(nn.Linear(1, 1, bias=False))
    assert parts.setups.parameter_names({"d": other, "g": model})[module.bias] == "g.bias"


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (lambda m, o, s: (m, [o]), TypeError, r"one by one: fabric.setup\(model, \*optimizers\)"),
        (lambda m, o, s: (m, s), TypeError, "scheduler=scheduler"),
        (lambda m, o, s: (m, m), TypeError, "one module at a time"),
        (lambda m, o, s: (o, m), TypeError, "The module comes first"),
        (lambda m, o, s: (lambda x: x,), TypeError, "takes a torch.nn.Module"),
        (lambda m, o, s: (m, None), TypeError, "NoneType"),
        (lambda m, o, s: (m, o, o), ValueError, "twice"),
    ],
)
def test_what_can_not_be_set_up(given, error, match):
    module = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(error, match=match) as caught:
        Parts().setup(*given(module, optimizer, StepLR(optimizer, 1)))
    assert isinstance(caught.value, errors.PoplinError)
    assert not is_wrapped(module)


def test_nothing_given_and_no_scheduler():
    with pytest.raises(ValueError, match="no optimizer"):
        Parts().setup_optimizers()
    module = nn.Linear(4, 1)
    with pytest.raises(TypeError, match="step"):
        Parts().setup(module, torch.optim.SGD(module.parameters(), lr=0.1), scheduler=0.1)


def test_what_is_set_up_already():
    parts, module = Parts(), nn.Linear(4, 1)
    raw = torch.optim.SGD(module.parameters(), lr=0.1)
    model, optimizer = parts.setup(module, raw)
    for attempt in (
        lambda: parts.setup(model),
        lambda: parts.setup_module(model),
        lambda: parts.setup(torch.compile(model, backend="eager")),
        lambda: parts.setup(module, optimizer),
        lambda: parts.setup_optimizers(optimizer),
    ):
        with pytest.raises(ValueError, match="set up already") as caught:
            attempt()
        assert isinstance(caught.value, errors.AlreadySetUpError)
    again, optimizer = parts.setup(module, raw)  # the raw objects again are fine
    assert all(moves(parts, again, optimizer))


def test_a_strategy_that_wants_both_at_once_says_so():
    parts, module = Parts(EngineStrategy()), nn.Linear(4, 1)
    parts.setup_module(module)  # for inference, say
    with pytest.raises(RuntimeError, match=r"only together.*fabric.setup\(model, optimizer\)"):
        parts.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1))


def test_parameters_on_several_devices_are_warned_about():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    with pytest.warns(PossibleUserWarning, match=r"4 parameters on 2 different devices.*'0.weight' on cpu.*'1.weight'"):
        Parts(ReplacingStrategy()).setup(module)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    Parts(ReplacingStrategy()).setup(module, move_to_device=False)


def test_frozen_and_empty_modules_pass_through_every_strategy(group):
    for strategy in (SingleDeviceStrategy, ReplicaStrategy, ReplacingStrategy, EngineStrategy):
        for module in (nn.Linear(4, 4).requires_grad_(False), nn.ReLU()):
            assert Parts(strategy()).setup(module)(X).shape == (2, 4)


def test_the_module_is_converted_moved_and_given_to_the_strategy_in_this_order():
    order = []

    class Precise(BF16True):
        def convert_module(self, module):
            order.append("convert")
            return super().convert_module(module)

    class Noting(SingleDeviceStrategy):
        def module_to_device(self, module):
            order.append("move")

        def setup_module(self, module):
            order.append("setup module")
            return module

        def setup_optimizer(self, optimizer):
            order.append("setup optimizer")
            return optimizer

    module = nn.Linear(4, 1)
    Parts(Noting(), Precise()).setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    assert order == ["convert", "move", "setup module", "setup optimizer"]
    order.clear()
    Parts(Noting()).setup(nn.Linear(4, 1), move_to_device=False)
    Parts(Noting()).setup(nn.Linear(4, 1, device="meta"))  # there is nothing to move
    assert order == ["setup module"] * 2


def test_a_strategys_optimizer_is_the_one_that_steps():
    class Other(SingleDeviceStrategy):
        def setup_optimizer(self, optimizer):
            return torch.optim.SGD(optimizer.param_groups, lr=1.0)

    module = nn.Linear(4, 1)
    parts = Parts(Other())
    model, optimizer = parts.setup(module, torch.optim.Adam(module.parameters()))
    assert isinstance(optimizer, torch.optim.SGD)
    assert all(moves(parts, model, optimizer))


# --- optimizers follow their parameters


@pytest.mark.parametrize("steps", [0, 1])
def test_an_optimizer_follows_replaced_parameters_with_its_state(steps):
    module = tied()
    raw = with_state(module) if steps else torch.optim.Adam(module.parameters(), lr=0.1)
    old = list(module.parameters())
    averages = [raw.state[parameter]["exp_avg"].clone() for parameter in old] if steps else []
    parts = Parts(ReplacingStrategy())
    model, optimizer = parts.setup(module, raw)
    new = list(module.parameters())
    assert all(one is not two for one, two in zip(old, new, strict=True))
    assert len(new) == 3  # tied weights stay tied
    assert all(one is two for one, two in zip(raw.param_groups[0]["params"], new, strict=True))
    for parameter, average in zip(new, averages, strict=False):
        assert torch.equal(raw.state[parameter]["exp_avg"], average)
        assert raw.state[parameter]["step"] == 1
    assert len(raw.state) == len(averages)
    assert all(moves(parts, model, optimizer))


def test_an_optimizer_set_up_later_follows_too():
    parts, module = Parts(ReplacingStrategy()), tied()
    raw = with_state(module)
    average = raw.state[module[0].weight]["exp_avg"]
    model = parts.setup_module(module)
    again = parts.setup_module(module)  # replaced a second time
    optimizer = parts.setup_optimizers(raw)
    assert torch.equal(raw.state[module[0].weight]["exp_avg"], average)
    assert all(moves(parts, model, optimizer))
    assert again.module is module


def test_an_optimizer_set_up_before_its_module_follows_too():
    parts, module = Parts(ReplacingStrategy()), tied()
    optimizer = parts.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1))
    model = parts.setup_module(module)
    assert all(moves(parts, model, optimizer))


def test_one_optimizer_over_several_modules():
    parts = Parts(ReplacingStrategy())
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    groups = [{"params": one.parameters(), "lr": 0.1}, {"params": two.parameters(), "lr": 0.2}]
    raw = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    first, optimizer = parts.setup(one, raw)
    second = parts.setup_module(two)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert all(moves(parts, first, optimizer))
    assert all(moves(parts, second, optimizer))


def test_the_strategy_places_state_by_name_where_it_does_that_itself():
    class Placing(ReplacingStrategy):
        given = None

        def load_optimizer_state(self, optimizer, state, names):
            self.given = (state, names)
            super().load_optimizer_state(optimizer, state, names)

    parts, module = Parts(Placing()), tied()
    raw = with_state(module)
    outside = nn.Parameter(torch.ones(4))
    raw.add_param_group({"params": [outside], "lr": 0.5})
    average = raw.state[module[0].weight]["exp_avg"].clone()
    model, optimizer = parts.setup(module, raw)
    state, names = parts.strategy.given
    assert set(state["state"]) == {"0.weight", "0.bias", "2.bias"}
    assert names[module[0].weight] == "0.weight"
    assert torch.equal(raw.state[module[0].weight]["exp_avg"], average)
    assert raw.param_groups[1]["params"] == [outside]
    assert [group["lr"] for group in raw.param_groups] == [0.1, 0.5]
    assert all(moves(parts, model, optimizer))


def test_state_from_before_is_handed_to_an_engine_by_name():
    parts, module = Parts(EngineStrategy()), nn.Linear(4, 1)
    raw = with_state(module)
    average = raw.state[module.weight]["exp_avg"]
    model, _ = parts.setup(module, raw)
    engine, state, names = parts.strategy.loaded
    assert engine is model._forward_module
    assert torch.equal(state["state"]["weight"]["exp_avg"], average)
    assert names == {module.weight: "weight", module.bias: "bias"}


def test_state_that_belongs_to_no_parameter_stays():
    parts, module = Parts(ReplacingStrategy()), tied()
    raw = with_state(module)
    raw.state["steps"] = 7
    model, optimizer = parts.setup(module, raw)
    assert raw.state["steps"] == 7
    assert all(moves(parts, model, optimizer))


def test_state_is_converted_with_its_parameters():
    parts, module = Parts(precision=BF16True()), nn.Linear(4, 4)
    raw = with_state(module, foreach=True)
    model, optimizer = parts.setup(module, raw)
    state = raw.state[module.weight]
    assert state["exp_avg"].dtype == torch.bfloat16
    assert state["step"].dtype == torch.float32
    assert all(moves(parts, model, optimizer))


def test_a_master_copy_in_another_format_stays():
    module = nn.Linear(4, 4)
    raw = torch.optim.SGD(module.parameters(), lr=0.1)
    raw.state[module.weight]["master"] = module.weight.detach().double()
    Parts(precision=BF16True()).setup(module, raw)
    assert raw.state[module.weight]["master"].dtype == torch.float64


def test_a_module_on_meta_that_the_strategy_gives_values():
    module = nn.Linear(4, 4, device="meta")
    raw = torch.optim.SGD(module.parameters(), lr=0.1)
    parts = Parts(ReplacingStrategy())
    model, optimizer = parts.setup(module, raw)
    assert all(moves(parts, model, optimizer))


def test_an_optimizer_on_meta_parameters_is_an_error_with_the_right_order():
    parts, module = Parts(), nn.Linear(4, 4, device="meta")
    raw = torch.optim.SGD(module.parameters(), lr=0.1)
    for attempt in (lambda: parts.setup(module, raw), lambda: parts.setup_optimizers(raw)):
        with pytest.raises(RuntimeError, match=r"2 of the 2 parameters of SGD are on the meta device.*setup_module"):
            attempt()
    parts.setup(module)


def test_an_optimizer_of_a_copy_is_an_error():
    parts, module = Parts(), tied()
    raw = torch.optim.SGD(copy.deepcopy(module).parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="belong to a copy of it"):
        parts.setup(module, raw)
    free = nn.Parameter(torch.zeros(()))  # a temperature, say: nobody's parameter
    _model, optimizer = parts.setup(module, torch.optim.SGD([free], lr=0.1))
    free.sum().backward()
    optimizer.step()
    assert free.item() == pytest.approx(-0.1)


class Renaming(SingleDeviceStrategy):
    """Has another parameter by another name afterwards, as where weights are quantised."""

    def setup_module(self, module):
        packed = nn.Parameter(module.weight.detach().clone())
        del module.weight
        module.packed = packed
        return module


def test_an_optimizer_on_parameters_that_are_gone_is_an_error():
    module = nn.Linear(4, 4)
    weight = module.weight
    raw = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match=r"1 of the 2 parameters of SGD are gone.*setup_module"):
        Parts(Renaming()).setup(module, raw)
    assert module.weight is weight
    parts = Parts(Renaming())
    parts.setup_module(module)
    with pytest.raises(RuntimeError, match=r"1 of the 2 parameters of SGD are gone"):
        parts.setup_optimizers(raw)
    parts.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1))


def test_state_that_does_not_fit_is_an_error_and_changes_nothing():
    class Flattening(SingleDeviceStrategy):
        def setup_module(self, module):
            module.weight = nn.Parameter(module.weight.detach().flatten())
            return module

    module = nn.Linear(4, 4)
    raw = with_state(module)
    weight = module.weight
    with pytest.raises(RuntimeError, match="doesn't fit"):
        Parts(Flattening()).setup(module, raw)
    assert module.weight is weight
    assert raw.param_groups[0]["params"][0] is weight


# --- what raises leaves nothing behind


def snapshot(module, optimizer):
    return {
        "parameters": [(name, id(p), p.dtype, p.data_ptr(), p.requires_grad) for name, p in module.named_parameters()],
        "buffers": [(name, id(b), b.dtype) for name, b in module.named_buffers()],
        "training": [part.training for part in module.modules()],
        "types": [type(part) for part in module.modules()],
        "groups": [
            (id(group), [id(p) for p in group["params"]], group["lr"], id(group["params"]))
            for group in optimizer.param_groups
        ],
        "state": [
            (id(p), {key: (id(value), getattr(value, "dtype", None)) for key, value in state.items()})
            for p, state in optimizer.state.items()
        ],
    }


class ChangesClass(FailingStrategy):
    def setup_module(self, module):
        module.__class__ = type("Sharded", (type(module),), {})
        module.requires_grad_(False)
        return super().setup_module(module)


class FailsLate(ReplacingStrategy):
    def setup_optimizer(self, optimizer):
        raise ValueError("the engine exploded")


class FailsPlacing(ReplacingStrategy):
    def load_optimizer_state(self, optimizer, state, names):
        optimizer.param_groups = []
        raise ValueError("the engine exploded")


@pytest.mark.parametrize("strategy", [FailingStrategy, ChangesClass, FailsLate, FailsPlacing])
@pytest.mark.parametrize("precision", [BF16Mixed, BF16True])
def test_a_setup_that_fails_leaves_everything_as_it_was(strategy, precision):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    raw = with_state(module)
    module._fabric = None
    before = snapshot(module, raw)
    parts = Parts(strategy(), precision())
    with pytest.raises(ValueError, match="exploded"):
        parts.setup(module, raw)
    assert snapshot(module, raw) == before
    assert parts.setups.modules == []
    assert len(parts.setups.replacements) == 0
    parts = Parts(ReplacingStrategy(), precision())
    assert any(moves(parts, *parts.setup(module, raw)))


def test_a_failing_setup_of_optimizers_leaves_them_as_they_were():
    class Fails(ReplacingStrategy):
        def setup_optimizer(self, optimizer):
            raise ValueError("exploded")

    module = nn.Linear(4, 4)
    parts, raw = Parts(Fails()), with_state(module)
    parts.setup_module(module)
    before = snapshot(module, raw)
    with pytest.raises(ValueError, match="exploded"):
        parts.setup_optimizers(raw)
    assert snapshot(module, raw) == before


# --- several models


def test_a_gan(group):
    for make in (Parts, lambda: Parts(ReplicaStrategy()), lambda: Parts(ReplacingStrategy(), BF16Mixed())):
        parts = make()
        generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 1)
        g, opt_g = parts.setup(generator, torch.optim.Adam(generator.parameters(), lr=0.1))
        d, opt_d = parts.setup(discriminator, torch.optim.Adam(discriminator.parameters(), lr=0.1))
        for _ in range(2):
            fake = g(X)
            opt_d.zero_grad()
            parts.backward(d(fake.detach()).float().mean() - d(X).float().mean(), model=d)
            opt_d.step()
            opt_g.zero_grad()
            d.requires_grad_(False)
            parts.backward(-d(fake).float().mean(), model=g)
            d.requires_grad_(True)
            opt_g.step()
        assert discriminator.weight.requires_grad
        assert all(moves(parts, d, opt_d))
        assert all(moves(parts, g, opt_g))


class LightningLike(nn.Module):
    def __init__(self):
        super().__init__()
        self._fabric = None
        self._fabric_optimizers = []
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)

    def optimizers(self):
        return self._fabric_optimizers


def test_what_looks_like_a_lightning_module_learns_of_optimizers_set_up_later():
    parts, module = Parts(), LightningLike()
    model = parts.setup_module(module)
    optimizer = parts.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1))
    other = nn.Linear(1, 1)
    parts.setup_optimizers(torch.optim.SGD(other.parameters(), lr=0.1))
    assert model.optimizers() == [optimizer]
