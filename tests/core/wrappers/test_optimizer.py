"""A wrapped optimizer is the optimizer, and steps by strategy and precision."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from wrapper_doubles import BF16Mixed, EngineStrategy, F16Mixed, Parts, ReplicaStrategy

from poplin.wrappers import FabricOptimizer, is_wrapped, unwrap

X = torch.ones(2, 4)

KINDS = {
    "32-true": lambda: Parts(),
    "bf16-mixed": lambda: Parts(precision=BF16Mixed()),
    "16-mixed": lambda: Parts(precision=F16Mixed()),
    "replica": lambda: Parts(ReplicaStrategy()),
}


@pytest.fixture(params=list(KINDS))
def parts(request, group):
    return KINDS[request.param]()


def made(parts, kind=torch.optim.AdamW, **kwargs):
    module = nn.Linear(4, 1)
    optimizer = kind(module.parameters(), **{"lr": 0.1, **kwargs})
    model, wrapped = parts.setup(module, optimizer)
    return model, wrapped, optimizer


def train(parts, model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        parts.backward(model(X).float().sum())
        optimizer.step()


def test_it_is_an_instance_of_the_users_class(parts):
    _, optimizer, raw = made(parts)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(optimizer, FabricOptimizer)
    assert type(optimizer).__name__ == "AdamW"
    assert repr(optimizer) == repr(raw)
    assert optimizer.optimizer is raw
    assert is_wrapped(optimizer)
    assert not is_wrapped(raw)
    assert unwrap(optimizer) is raw


def test_it_shares_state_groups_and_attributes(parts):
    model, optimizer, raw = made(parts)
    train(parts, model, optimizer)
    assert optimizer.state is raw.state
    assert len(raw.state) == 2
    optimizer.param_groups[0]["lr"] = 0.5
    assert raw.param_groups[0]["lr"] == 0.5
    optimizer.note = 1
    assert raw.note == 1
    extra = nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [extra], "lr": 0.01})
    assert len(raw.param_groups) == 2
    assert optimizer.state_dict()["param_groups"] == raw.state_dict()["param_groups"]


def test_state_dicts_load_and_step_stays_what_it_is(parts):
    model, optimizer, raw = made(parts)
    class_step = type(raw).step
    train(parts, model, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    train(parts, model, optimizer, 2)
    optimizer.load_state_dict(saved)
    assert raw.state[model.weight]["step"] == 2
    assert type(raw).step is class_step
    train(parts, model, optimizer)
    assert raw.state[model.weight]["step"] == 3


def test_copies_and_pickles_are_wrapped_and_independent(parts):
    model, optimizer, raw = made(parts)
    train(parts, model, optimizer)
    if parts.precision.scales_loss:
        parts.precision.flush()  # torch's scaler can be pickled between iterations only
    model_copy, twin = copy.deepcopy((model, optimizer))
    for other in (twin, pickle.loads(pickle.dumps(optimizer)), copy.copy(optimizer)):
        assert isinstance(other, FabricOptimizer)
        assert other.optimizer is not raw
        assert other.param_groups[0]["lr"] == raw.param_groups[0]["lr"]
    assert twin.param_groups[0]["params"][0] is model_copy.weight
    before = model.weight.detach().clone()
    train(parts, model_copy, twin)
    assert not torch.equal(model_copy.weight, before)
    assert torch.equal(model.weight, before)


def test_schedulers_take_it_without_a_warning(parts):
    model, optimizer, raw = made(parts)
    schedulers = [StepLR(optimizer, 1, gamma=0.5), StepLR(optimizer, 1, gamma=0.9)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            train(parts, model, optimizer)
            for scheduler in schedulers:
                scheduler.step()
    assert raw.param_groups[0]["lr"] < 0.1
    optimizer.load_state_dict(optimizer.state_dict())
    train(parts, model, optimizer)
    schedulers[0].step()


def test_a_scheduler_of_the_raw_optimizer_goes_on_working(parts):
    module = nn.Linear(4, 1)
    raw = torch.optim.SGD(module.parameters(), lr=1.0)
    scheduler = StepLR(raw, 1, gamma=0.1)
    model, optimizer = parts.setup(module, raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(parts, model, optimizer)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_the_order_of_steps_is_still_warned_about():
    _model, optimizer, _ = made(Parts())
    scheduler = StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


def test_step_can_be_replaced_and_given_back(parts):
    model, optimizer, _ = made(parts)
    before = model.weight.detach().clone()
    optimizer.step = lambda: "replaced"
    assert optimizer.step() == "replaced"
    assert torch.equal(model.weight, before)
    del optimizer.step
    train(parts, model, optimizer)
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(parts, set_to_none):
    model, optimizer, _ = made(parts)
    parts.backward(model(X).sum())
    optimizer.zero_grad(set_to_none=set_to_none)
    assert model.weight.grad is None if set_to_none else model.weight.grad.abs().sum() == 0


def test_a_closure_runs_once_and_its_loss_is_returned(parts):
    model, optimizer, _ = made(parts, torch.optim.SGD)
    before = model.weight.detach().clone()
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model(X).float().sum()
        parts.backward(loss)
        return loss

    first = closure().item()
    calls.clear()
    assert optimizer.step(closure).item() == pytest.approx(first)
    assert optimizer.step(closure=closure).item() < first
    assert calls == [1, 1]
    assert not torch.equal(model.weight, before)


def test_lbfgs_evaluates_its_closure_as_often_as_it_likes():
    parts = Parts()
    model, optimizer, _ = made(parts, torch.optim.LBFGS)

    def closure():
        optimizer.zero_grad()
        loss = (model(X) - 1).square().sum()
        parts.backward(loss)
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


def test_step_hooks_get_strategy_and_optimizer(parts):
    model, optimizer, raw = made(parts)
    with parts.heard("on_optimizer_step_start", "on_after_optimizer_step") as calls:
        train(parts, model, optimizer)
    given = {"strategy": parts.strategy, "optimizer": raw}
    assert calls == [("on_optimizer_step_start", given), ("on_after_optimizer_step", given)]
    own = []
    optimizer.register_step_post_hook(lambda *args: own.append(args[0]))
    train(parts, model, optimizer)
    assert own == [raw]


def test_step_hooks_get_the_engine_that_steps():
    parts = Parts(EngineStrategy())
    model, optimizer, _ = made(parts)
    with parts.heard("on_after_optimizer_step") as calls:
        train(parts, model, optimizer)
    assert calls == [("on_after_optimizer_step", {"strategy": parts.strategy, "optimizer": model._forward_module})]


class Lookahead(torch.optim.Optimizer):
    """Holds its base in an attribute by the wrapper's own name."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.slow = {"count": 0}
        self.param_groups = optimizer.param_groups
        self.defaults = optimizer.defaults
        self.state = optimizer.state

    def step(self, closure=None):
        self.slow["count"] += 1
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self):
        return {"fast": self.optimizer.state_dict(), "slow": self.slow}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["fast"])
        self.slow = state["slow"]


def test_an_optimizer_around_another_one():
    parts = Parts()
    module = nn.Linear(4, 1)
    base = torch.optim.Adam(module.parameters())
    raw = Lookahead(base)
    model, optimizer = parts.setup(module, raw)
    train(parts, model, optimizer, 2)
    assert optimizer.optimizer is raw
    state = copy.deepcopy(optimizer.state_dict())
    assert state["slow"] == {"count": 2}
    assert len(state["fast"]["state"]) == 2
    optimizer.load_state_dict(state)
    assert raw.slow == {"count": 2}


def test_torchs_own_scaler_and_compile_accept_it():
    parts = Parts()
    model, optimizer, _ = made(parts)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(X).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.1)


# --- schedulers set up together with it


def overflow(parts, model, optimizer):
    optimizer.zero_grad()
    parts.backward(model(torch.full((2, 4), float("inf"))).float().sum())
    optimizer.step()


def scheduled(make):
    parts = Parts(precision=F16Mixed())
    module = nn.Linear(4, 1)
    raw = torch.optim.SGD(module.parameters(), lr=1.0)
    scheduler = make(raw)
    model, optimizer, wrapped = parts.setup(module, raw, scheduler=scheduler)
    return parts, model, optimizer, scheduler, wrapped


def test_a_scheduler_does_not_advance_on_a_skipped_step():
    parts, model, optimizer, raw, scheduler = scheduled(lambda opt: StepLR(opt, 1, gamma=0.1))
    assert isinstance(scheduler, StepLR)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        overflow(parts, model, optimizer)
        scheduler.step()
        assert raw.last_epoch == 0
        train(parts, model, optimizer)
        scheduler.step()
    assert raw.last_epoch == 1
    assert scheduler.get_last_lr() == [pytest.approx(0.1)]
    assert scheduler.state_dict() == raw.state_dict()
    scheduler.load_state_dict({**raw.state_dict(), "last_epoch": 7})
    assert raw.last_epoch == 7
    scheduler.note = 1
    assert raw.note == 1
    assert isinstance(pickle.loads(pickle.dumps(scheduler)), StepLR)


def test_a_scheduler_stepped_once_an_epoch_misses_no_epoch_in_which_something_moved():
    parts, model, optimizer, raw, scheduler = scheduled(lambda opt: StepLR(opt, 1))
    train(parts, model, optimizer)
    overflow(parts, model, optimizer)
    scheduler.step()
    assert raw.last_epoch == 1
    overflow(parts, model, optimizer)
    overflow(parts, model, optimizer)
    scheduler.step()
    assert raw.last_epoch == 1
    scheduler.step()  # no step was tried: that is the user's own business
    assert raw.last_epoch == 2


def test_kinds_of_schedulers():
    _, _model, optimizer, raw, scheduler = scheduled(lambda opt: ReduceLROnPlateau(opt, patience=0))
    assert isinstance(scheduler, ReduceLROnPlateau)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the order of steps: there are none
        check_plateau(optimizer, raw, scheduler)


def check_plateau(optimizer, raw, scheduler):
    for loss in (1.0, 2.0, 2.0):
        scheduler.step(loss)
    assert optimizer.param_groups[0]["lr"] < 1.0
    scheduler.step(metrics=0.1)
    assert raw.best == 0.1


def test_schedulers_that_hold_others():
    parts, model, optimizer, raw, scheduler = scheduled(lambda opt: OneCycleLR(opt, 1.0, total_steps=10))
    train(parts, model, optimizer)
    scheduler.step()
    assert isinstance(scheduler, OneCycleLR)
    parts, model, optimizer, raw, scheduler = scheduled(
        lambda opt: SequentialLR(opt, [StepLR(opt, 1), StepLR(opt, 2)], milestones=[2])
    )
    for _ in range(4):
        train(parts, model, optimizer)
        scheduler.step()
    assert raw.last_epoch == 4


def test_where_no_step_is_skipped_the_scheduler_is_the_users_own(group):
    for parts in (Parts(), Parts(ReplicaStrategy()), Parts(precision=BF16Mixed())):
        module = nn.Linear(4, 1)
        raw = torch.optim.SGD(module.parameters(), lr=1.0)
        scheduler = StepLR(raw, 1)
        assert parts.setup(module, raw, scheduler=scheduler)[2] is scheduler
