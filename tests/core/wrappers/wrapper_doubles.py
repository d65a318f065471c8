"""Strategies and precisions that stand for plugins, and what a Fabric would give to setup."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from poplin.accelerators import CPUAccelerator
from poplin.precision import Precision
from poplin.strategies import SingleDeviceStrategy
from poplin.utilities.apply_func import apply_to_tensors
from poplin.wrappers import MethodDispatch
from poplin.wrappers.setup import setup_module, setup_module_and_optimizers, setup_optimizers
from poplin.wrappers.setups import Setups


class BF16Mixed(Precision):
    precision = "bf16-mixed"
    autocasts = True

    def forward_context(self):
        return torch.autocast("cpu", torch.bfloat16)


class BF16True(Precision):
    precision = "bf16-true"
    converts_module = True
    converts_data = True

    def convert_module(self, module):
        return module.to(torch.bfloat16)

    def convert_input(self, data):
        return apply_to_tensors(data, lambda t: t.bfloat16() if t.is_floating_point() else t)

    def convert_output(self, data):
        return apply_to_tensors(data, lambda t: t.float() if t.is_floating_point() else t)


class F16Mixed(Precision):
    """One scaler, updated at the first backward after a step."""

    precision = "16-mixed"
    autocasts = True
    scales_loss = True

    def __init__(self, scale=2.0**6):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.stale = False
        self.unscaled = set()
        self.found = {}

    def forward_context(self):
        return torch.autocast("cpu", torch.float16)

    def flush(self):
        if self.stale:
            self.scaler.update()
            self.stale = False
            self.unscaled.clear()

    def backward(self, tensor, model, *args, **kwargs):
        self.flush()
        self.scaler.scale(tensor).backward(*args, **kwargs)

    def unscale_gradients(self, optimizer):
        if id(optimizer) not in self.unscaled:
            self.unscaled.add(id(optimizer))
            self.scaler.unscale_(optimizer)

    def optimizer_step(self, optimizer, closure=None, **kwargs):
        loss = closure() if closure is not None else None
        result = self.scaler.step(optimizer, **kwargs)
        found = self.scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        self.found[id(optimizer)] = any(value.item() for value in found.values())
        self.stale = True
        return loss if closure is not None else result

    def step_was_skipped(self, optimizer):
        return self.found.get(id(optimizer), False)


class ReplacingStrategy(SingleDeviceStrategy):
    """Every parameter is another object after setup, as where parameters are sharded."""

    def setup_module(self, module):
        replaced = {}
        for part in module.modules():
            for name, parameter in list(part._parameters.items()):
                if parameter is None:
                    continue
                if parameter not in replaced:
                    data = torch.zeros(parameter.shape) if parameter.is_meta else parameter.detach().clone()
                    replaced[parameter] = nn.Parameter(data, parameter.requires_grad)
                part._parameters[name] = replaced[parameter]
        return module


class FailingStrategy(ReplacingStrategy):
    """Does half of its work, and fails."""

    def setup_module(self, module):
        super().setup_module(module)
        module.eval()
        raise ValueError("the engine exploded")


class Engine(nn.Module):
    """An engine with one door, a flat parameter and an optimizer of its own."""

    def __init__(self, module, optimizer):
        super().__init__()
        self.module = MethodDispatch(module)
        self.optimizer = optimizer
        self.calls = []

    def forward(self, *args, **kwargs):
        self.calls.append("forward")
        return self.module(*args, **kwargs)


class EngineStrategy(SingleDeviceStrategy):
    needs_forward = True
    owns_backward = True
    owns_parameters = True
    requires_joint_setup = True
    mutates_module = True
    picklable = False
    loaded = None

    def setup_module(self, module):
        return Engine(module, None)

    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        (optimizer,) = optimizers
        optimizer.state.clear()
        return Engine(module, optimizer), [optimizer], scheduler

    def original_module(self, wrapped):
        return wrapped.module.module

    def forward_method(self, wrapped, name):
        return wrapped.module.through(wrapped, name)

    def backward(self, tensor, module, *args, **kwargs):
        module.calls.append("backward")
        tensor.backward(*args, **kwargs)

    def optimizer_step(self, optimizer, model=None, **kwargs):
        model.calls.append("step")
        return optimizer.step(**kwargs)

    def zero_grad(self, optimizer, model=None, set_to_none=True):
        model.calls.append("zero_grad")
        optimizer.zero_grad(set_to_none=set_to_none)

    def load_optimizer_state(self, optimizer, state, names):
        self.loaded = (optimizer, state, names)


class ReplicaStrategy(SingleDeviceStrategy):
    """torch's own data-parallel wrapper, in a group of one process."""

    needs_forward = True

    def setup_module(self, module):
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        return DistributedDataParallel(MethodDispatch(module))

    def original_module(self, wrapped):
        return wrapped.module.module if isinstance(wrapped, DistributedDataParallel) else wrapped

    def forward_method(self, wrapped, name):
        if not isinstance(wrapped, DistributedDataParallel):
            return getattr(wrapped, name)
        return wrapped.module.through(wrapped, name)


class Hooks:
    """Live lists of handlers, as a Fabric's callbacks have them."""

    def __init__(self):
        self.handlers: dict[str, list[Any]] = {}

    def live(self, name):
        return self.handlers.setdefault(name, [])


class Parts:
    """What of a Fabric matters here."""

    def __init__(self, strategy=None, precision=None):
        self.strategy = SingleDeviceStrategy() if strategy is None else strategy
        self.precision = Precision() if precision is None else precision
        self.strategy.bind(
            SimpleNamespace(
                accelerator=CPUAccelerator(),
                devices=(torch.device("cpu"),),
                environment=None,
                precision=self.precision,
                checkpoint_io=None,
                launcher=None,
            )
        )
        self.hooks = Hooks()
        self.setups = Setups(self.strategy, self.precision, self.hooks)
        self.backward = self.setups.backward

    def setup(self, module, *optimizers, scheduler=None, **kwargs):
        done = setup_module_and_optimizers(module, optimizers, scheduler, setups=self.setups, **kwargs)
        found = (done.module, *done.optimizers, *(() if scheduler is None else (done.scheduler,)))
        return found if len(found) > 1 else found[0]

    def setup_module(self, module, **kwargs):
        return setup_module(module, setups=self.setups, **kwargs)

    def setup_optimizers(self, *optimizers):
        wrapped = setup_optimizers(optimizers, setups=self.setups)
        return wrapped[0] if len(wrapped) == 1 else wrapped

    @contextmanager
    def heard(self, *names):
        """The keyword arguments with which the hooks are fired, in order."""
        calls: list[Any] = []
        for name in names:
            self.hooks.live(name).append(lambda name=name, **kwargs: calls.append((name, kwargs)))
        yield calls
        for name in names:
            self.hooks.live(name).clear()
