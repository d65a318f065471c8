"""A training step through Fabric: what it hands on to the wrappers, callbacks and precisions."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from poplin import Fabric, is_wrapped

X = torch.ones(2, 4)


class LightningLike(nn.Module):
    """Has what a LightningModule has for a Fabric."""

    def __init__(self):
        super().__init__()
        self._fabric = None
        self._fabric_optimizers = []
        self.layer = nn.Linear(4, 1)
        self.heard = []

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx=0):
        return self(batch).mean()

    def on_after_setup(self, fabric, module):
        self.heard.append(("on_after_setup", is_wrapped(module)))

    def on_after_optimizer_step(self, optimizer):
        self.heard.append(("on_after_optimizer_step", type(optimizer).__name__))

    def on_backward_end(self, loss):
        self.heard.append(("on_backward_end", loss.dim()))


class Listener:
    def __init__(self):
        self.heard = []

    def on_after_setup(self, fabric, module):
        self.heard.append((fabric, module))


@pytest.mark.parametrize("compiled", [False, True])
def test_what_looks_like_a_lightning_module_is_told_and_becomes_a_callback_once(compiled):
    with Fabric(accelerator="cpu", devices=1) as fabric:
        module = LightningLike()
        given = torch.compile(module, backend="eager") if compiled else module
        model, optimizer = fabric.setup(given, torch.optim.SGD(module.parameters(), lr=0.1))
        assert module._fabric is fabric
        assert module._fabric_optimizers == [optimizer]
        assert fabric.callbacks == (module,)
        fabric.backward(model.training_step(X))
        optimizer.step()
        assert module.heard == [("on_after_setup", True), ("on_backward_end", 0), ("on_after_optimizer_step", "SGD")]
        fabric.setup_module(module)
        assert fabric.callbacks == (module,)
        twin = copy.deepcopy(model)
        assert twin._fabric is fabric


def test_on_after_setup_is_fired_once_for_each_module():
    listener = Listener()
    with Fabric(accelerator="cpu", devices=1, callbacks=listener) as fabric:
        one = nn.Linear(4, 1)
        model, _ = fabric.setup(one, torch.optim.SGD(one.parameters(), lr=0.1))
        other = fabric.setup_module(nn.Linear(4, 1))
        fabric.setup_optimizers(torch.optim.SGD(other.parameters(), lr=0.1))
        assert [module for _, module in listener.heard] == [model, other]
        assert all(told is fabric for told, _ in listener.heard)
        with pytest.raises(ValueError, match="set up already"):
            fabric.setup(model)
        assert len(listener.heard) == 2


def test_a_setup_that_fails_makes_no_callback():
    with Fabric(accelerator="cpu", devices=1) as fabric:
        module = LightningLike()
        copied = torch.optim.SGD(copy.deepcopy(module).parameters(), lr=0.1)
        with pytest.raises(RuntimeError, match="copy"):
            fabric.setup(module, copied)
        assert module._fabric is None
        assert fabric.callbacks == ()


def test_what_setup_returns():
    with Fabric(accelerator="cpu", devices=1) as fabric:
        module = nn.Linear(4, 1)
        raw = torch.optim.SGD(module.parameters(), lr=0.1)
        assert is_wrapped(fabric.setup(module))
        assert len(fabric.setup(module, raw)) == 2
        assert len(fabric.setup(module, raw, torch.optim.Adam(module.parameters()), scheduler=StepLR(raw, 1))) == 4
        assert is_wrapped(fabric.setup_optimizers(raw))
        assert len(fabric.setup_optimizers(raw, torch.optim.Adam(module.parameters()))) == 2


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true", "64-true"])
def test_a_step_at_each_precision(precision):
    pytest.importorskip("poplin_precision")
    with Fabric(accelerator="cpu", devices=1, precision=precision) as fabric:
        module = nn.Linear(4, 4)
        raw = torch.optim.AdamW(module.parameters(), lr=0.1)
        model, optimizer, scheduler = fabric.setup(module, raw, scheduler=StepLR(raw, 1, gamma=0.5))
        for _ in range(3):
            before = module.weight.detach().clone()

            def closure():
                optimizer.zero_grad()
                loss = model(X).mean()
                fabric.backward(loss)
                return loss

            assert optimizer.step(closure).dim() == 0
            assert not torch.equal(module.weight, before)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                scheduler.step()
        assert raw.param_groups[0]["lr"] == pytest.approx(0.0125)
        for obj in (model, optimizer):  # also between an optimizer's step and the scaler's update
            assert is_wrapped(pickle.loads(pickle.dumps(obj)))
            assert is_wrapped(copy.deepcopy(obj))
        if precision == "16-mixed":
            optimizer.zero_grad()
            fabric.backward((model(X) * float("inf")).mean())
            assert not fabric.clip_gradients(model, optimizer, max_norm=1.0).isfinite()
            optimizer.step()
            scheduler.step()
            assert raw.param_groups[0]["lr"] == pytest.approx(0.0125)
            with pytest.raises(RuntimeError, match="fabric.backward"):
                model(X).mean().backward()
        else:
            model(X).mean().backward()


def test_two_wrappers_one_loss_under_loss_scaling():
    package = pytest.importorskip("poplin_precision")
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # at which nothing overflows
    results = []
    for precision in (package.MixedPrecision("16-mixed", scaler=scaler), None):
        torch.manual_seed(0)
        with Fabric(accelerator="cpu", devices=1, plugins=precision) as fabric:
            one, two = nn.Linear(4, 4), nn.Linear(4, 1)
            first, opt_first = fabric.setup(one, torch.optim.SGD(one.parameters(), lr=0.1))
            second, opt_second = fabric.setup(two, torch.optim.SGD(two.parameters(), lr=0.1))
            for _ in range(3):
                for optimizer in (opt_first, opt_second):
                    optimizer.zero_grad()
                fabric.backward(second(first(X)).mean())
                for model, optimizer in ((first, opt_first), (second, opt_second)):
                    fabric.clip_gradients(model, optimizer, max_norm=10.0)
                    optimizer.step()
            results.append(torch.cat([one.weight.detach().flatten(), two.weight.detach().flatten()]))
    assert torch.allclose(*results, atol=1e-2)
