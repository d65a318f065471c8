"""Backward passes and clipped gradients."""

import pytest
import torch
from torch import nn
from wrapper_doubles import BF16Mixed, EngineStrategy, F16Mixed, Parts, ReplacingStrategy, ReplicaStrategy

from poplin import errors
from poplin.precision import Precision
from poplin.wrappers.clip import clip_gradients

X = torch.ones(2, 4)


def made(parts, scale=1.0):
    module = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return parts.setup(module, optimizer)


# --- backward


def test_all_arguments_are_handed_on():
    for parts in (Parts(), Parts(precision=F16Mixed(scale=1.0))):
        model, _ = made(parts)
        loss = model(X).float()
        parts.backward(loss, torch.ones(2, 1), retain_graph=True)
        parts.backward(loss, gradient=torch.ones(2, 1))
        assert torch.allclose(model.weight.grad, torch.full((1, 4), 4.0))


def test_hooks_around_a_backward_pass():
    for parts in (Parts(), Parts(precision=F16Mixed())):
        model, _ = made(parts)
        loss = model(X).float().sum()
        with parts.heard("on_backward_start", "on_backward_end") as calls:
            parts.backward(loss)
        assert [name for name, _ in calls] == ["on_backward_start", "on_backward_end"]
        assert all(kwargs == {"loss": loss} for _, kwargs in calls)


def test_a_precision_with_a_part_in_it_is_asked():
    order = []

    class Noting(Precision):
        def pre_backward(self, tensor, module):
            order.append("pre")

        def post_backward(self, tensor, module):
            order.append("post")

    parts = Parts(precision=Noting())
    model, _ = made(parts)
    parts.backward(model(X).sum())
    assert order == ["pre", "post"]
    model(X).sum().backward()  # nothing is scaled: this is fine


@pytest.mark.parametrize("wrong", [None, 1.0, {"loss": 1}])
def test_what_is_no_tensor(wrong):
    for parts in (Parts(), Parts(precision=F16Mixed())):
        with pytest.raises(TypeError, match="takes the loss"):
            parts.backward(wrong)


def test_a_plain_backward_is_an_error_where_the_loss_is_scaled():
    parts = Parts(precision=F16Mixed(scale=4.0))
    model, _ = made(parts)
    loss = model(X).float().sum()
    with pytest.raises(RuntimeError, match=r"scales the loss: call fabric.backward\(loss\)") as caught:
        loss.backward()
    assert isinstance(caught.value, errors.UsageError)
    assert model.weight.grad is None
    parts.backward(model(X).float().sum())
    assert torch.allclose(model.weight.grad, torch.full((1, 4), 8.0))
    with pytest.raises(RuntimeError, match="fabric.backward"):
        model(X).sum().backward(inputs=list(model.parameters()))
    with pytest.raises(RuntimeError, match="fabric.backward"):
        torch.autograd.backward(model(X).sum())


def test_a_plain_backward_is_an_error_where_an_engine_runs_it():
    parts = Parts(EngineStrategy())
    model, _ = made(parts)
    with pytest.raises(RuntimeError, match="EngineStrategy runs the backward pass itself"):
        model(X).sum().backward()


def test_a_plain_backward_is_fine_elsewhere(group):
    for parts in (Parts(), Parts(precision=BF16Mixed()), Parts(ReplicaStrategy())):
        model, _ = made(parts)
        output = model(X)
        assert not output._backward_hooks
        output.sum().backward()
        assert model.weight.grad is not None


def test_every_output_is_watched_and_no_leaf_is_hooked():
    class Outputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return {"logits": [x * self.weight], "weight": self.weight, "input": x, "text": "a"}

    parts = Parts(precision=F16Mixed())
    model = parts.setup(Outputs())
    for _ in range(3):
        output = model(X)
    assert output["weight"] is model.weight
    assert not model.weight._backward_hooks
    with pytest.raises(RuntimeError, match="fabric.backward"):
        output["logits"][0].sum().backward()


def test_gradients_without_accumulation_are_the_callers_business():
    """A gradient penalty asks for gradients in the middle of a step."""
    parts = Parts(precision=F16Mixed(scale=2.0))
    model, _ = made(parts)
    x = X.clone().requires_grad_()
    output = model(x).float()
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    torch.autograd.grad(model(X).sum(), list(model.parameters()))
    parts.backward(gradient.square().sum() + output.sum())
    assert model.weight.grad is not None


def test_a_frozen_model_is_guarded_too():
    parts = Parts(precision=F16Mixed())
    model = parts.setup(nn.Linear(4, 1).requires_grad_(False))
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="fabric.backward"):
        model(x).sum().backward()


def test_the_guard_is_right_after_a_backward_that_failed():
    parts = Parts(precision=F16Mixed())
    model, _ = made(parts)
    with pytest.raises(RuntimeError, match="scalar"):
        parts.backward(model(X).float())
    assert parts.setups.guard.inside == []
    with pytest.raises(RuntimeError, match="fabric.backward"):
        model(X).sum().backward()


def test_marked_methods_are_guarded_too():
    class Step(nn.Linear):
        def training_step(self, x):
            return self(x).mean()

    model = Parts(precision=F16Mixed()).setup(Step(4, 1))
    with pytest.raises(RuntimeError, match="fabric.backward"):
        model.training_step(X).backward()


def test_with_several_engines_the_model_must_be_named():
    parts = Parts(EngineStrategy())
    loss = torch.ones((), requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="no module is set up yet"):
        parts.backward(loss)
    one, _ = made(parts)
    frozen = parts.setup(nn.Linear(1, 1).requires_grad_(False))
    parts.backward(one(X).sum())  # a frozen one needs no backward
    two, _ = made(parts)
    with pytest.raises(ValueError, match=r"2 modules are set up.*model=model"):
        parts.backward(one(X).sum())
    parts.backward(two(X).sum(), model=two)
    parts.backward(one(X).sum(), model=one.module)
    assert two._forward_module.calls == ["forward", "backward"]
    assert one._forward_module.calls == ["forward", "backward", "forward", "forward", "backward"]
    assert frozen._forward_module.calls == []
    with pytest.raises(TypeError, match="has not been set up"):
        parts.backward(one(X).sum(), model=nn.Linear(1, 1))
    del two
    parts.backward(one(X).sum())  # it is gone


# --- clipping


def clip(parts, module, optimizer, **kwargs):
    return clip_gradients(module, optimizer, setups=parts.setups, **kwargs)


@pytest.mark.parametrize("kwargs", [{}, {"clip_val": 1.0, "max_norm": 1.0}])
def test_exactly_one_of_value_and_norm(kwargs):
    parts = Parts()
    with pytest.raises(ValueError, match="exactly one"):
        clip(parts, *made(parts), **kwargs)


@pytest.mark.parametrize("norm_type", [0, -1.0, "two", None, float("nan")])
def test_norm_types_that_make_no_sense(norm_type):
    parts = Parts()
    with pytest.raises(ValueError, match="norm_type"):
        clip(parts, *made(parts), max_norm=1.0, norm_type=norm_type)


def test_things_that_are_neither_module_nor_optimizer():
    parts = Parts()
    model, optimizer = made(parts)
    with pytest.raises(TypeError, match="module first"):
        clip(parts, "model", optimizer, max_norm=1.0)
    with pytest.raises(TypeError, match="optimizer second"):
        clip(parts, model, model, max_norm=1.0)


@pytest.mark.parametrize(
    ("norm_type", "expected"), [(2.0, (16 * 4 + 4) ** 0.5), (1.0, 18.0), ("inf", 4.0), (float("inf"), 4.0), (3, None)]
)
def test_the_total_norm_is_returned_and_gradients_are_clipped(norm_type, expected):
    parts = Parts()
    model, optimizer = made(parts)
    parts.backward(model(2 * X).sum())
    assert torch.equal(model.weight.grad, torch.full((1, 4), 4.0))
    norm = clip(parts, model, optimizer, max_norm=1.0, norm_type=norm_type)
    assert expected is None or norm.item() == pytest.approx(expected, rel=1e-3)
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.linalg.vector_norm(gradients, float(norm_type)).item() == pytest.approx(1.0, rel=1e-4)


def test_clipping_by_value():
    parts = Parts()
    model, optimizer = made(parts)
    parts.backward(model(2 * X).sum())
    assert clip(parts, model, optimizer, clip_val=3) is None
    assert torch.equal(model.weight.grad, torch.full((1, 4), 3.0))
    assert model.bias.grad.item() == 2.0


def test_wrapped_raw_and_compiled_objects(group):
    for parts in (Parts(), Parts(ReplicaStrategy()), Parts(ReplacingStrategy())):
        model, optimizer = made(parts)
        compiled = torch.compile(model, backend="eager")
        for module in (model, model.module, compiled):
            for stepped in (optimizer, optimizer.optimizer):
                optimizer.zero_grad()
                parts.backward(model(X).sum())
                clip(parts, module, stepped, max_norm=0.1)
                assert torch.linalg.vector_norm(model.weight.grad) <= 0.1


def test_only_the_parameters_of_the_module_are_clipped():
    parts = Parts()
    one, two = nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)
    raw = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
    module = nn.Sequential(one, two)
    model, optimizer = parts.setup(module, raw)
    parts.backward(10 * model(X).sum())
    before = one.weight.grad.clone()
    norm = clip(parts, two, optimizer, max_norm=0.5)
    assert torch.equal(one.weight.grad, before)
    assert torch.linalg.vector_norm(two.weight.grad).item() == pytest.approx(0.5, rel=1e-4)
    clip(parts, None, optimizer, max_norm=0.5)
    assert torch.linalg.vector_norm(one.weight.grad) <= 0.5
    assert norm > 0.5


def test_the_list_of_parameters_follows_the_optimizer():
    parts = Parts()
    model, optimizer = made(parts)
    for _ in range(2):
        parts.backward(model(X).sum())
        clip(parts, model, optimizer, max_norm=0.1)
    model.extra = nn.Parameter(torch.ones(4))
    optimizer.add_param_group({"params": [model.extra]})
    model.extra.grad = torch.full((4,), 100.0)
    clip(parts, model, optimizer, max_norm=0.1)
    assert torch.linalg.vector_norm(model.extra.grad) <= 0.1


def test_norms_that_are_not_finite():
    parts = Parts()
    model, optimizer = made(parts)
    parts.backward(model(X * float("inf")).sum())
    with pytest.raises(RuntimeError, match="non-finite.*weight.*error_if_nonfinite=False") as caught:
        clip(parts, model, optimizer, max_norm=1.0)
    assert isinstance(caught.value, errors.NonFiniteGradientsError)
    assert not clip(parts, model, optimizer, max_norm=1.0, error_if_nonfinite=False).isfinite()


@pytest.mark.parametrize("fused", [True, False])
def test_under_loss_scaling_gradients_are_unscaled_first_and_an_overflow_is_no_error(fused):
    parts = Parts(precision=F16Mixed(scale=64.0))
    module = nn.Linear(4, 1)
    model, optimizer = parts.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1, fused=fused))
    for _ in range(3):
        optimizer.zero_grad()
        parts.backward(model(X).float().sum())
        assert clip(parts, model, optimizer, max_norm=1.0).item() == pytest.approx(20**0.5, rel=1e-2)
        before = module.weight.detach().clone()
        optimizer.step()
        assert not torch.equal(module.weight, before)
    optimizer.zero_grad()
    parts.backward(model(X * float("inf")).float().sum())
    before = module.weight.detach().clone()
    assert not clip(parts, model, optimizer, max_norm=1.0).isfinite()
    optimizer.step()
    assert torch.equal(module.weight, before)
    assert parts.strategy.step_was_skipped(optimizer.optimizer)


def test_an_engine_clips_by_its_own_means():
    class Clipping(EngineStrategy):
        def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
            return module, optimizer, max_norm, norm_type, error_if_nonfinite

    parts = Parts(Clipping())
    model, optimizer = made(parts)
    given = clip(parts, model, optimizer, max_norm=1.0, norm_type="inf")
    assert given == (model._forward_module, optimizer.optimizer, 1.0, float("inf"), True)
    assert clip(parts, model.module, optimizer.optimizer, max_norm=1.0)[0] is model._forward_module
