"""Data parallelism for a device that has no process-group backend: gradients meet on the CPU."""

import contextlib
import weakref

import torch

from poplin.errors import SelectionError
from poplin.strategies import ParallelStrategy


class StagedStrategy(ParallelStrategy):
    owns_backward = True  # after it gradients are averaged: a plain loss.backward() would leave that out

    def __init__(self, **fixed):
        super().__init__(**fixed)
        self._modules = weakref.WeakSet()
        self._local = weakref.WeakSet()

    def check(self, selection):
        if selection.accelerator.device_type != "acme":
            raise SelectionError("The strategy 'acme_staged' serves acme devices. Use strategy='ddp' on others.")

    def accepts_precision(self, precision):
        return None  # the backward pass below is the precision's, so losses are scaled

    def setup_module(self, module):
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                tensor.copy_(self.broadcast(tensor))
        self._modules.add(module)
        return module

    def backward(self, tensor, module, *args, **kwargs):
        super().backward(tensor, module, *args, **kwargs)
        for owned in [module] if module is not None else self._modules:
            if owned in self._local:
                continue
            for parameter in owned.parameters():
                if parameter.grad is not None:
                    self.all_reduce(parameter.grad)  # a mean; what the group can't take goes over the CPU

    @contextlib.contextmanager
    def no_backward_sync(self, module, enabled=True):
        if not enabled:
            yield
            return
        self._local.add(module)
        try:
            yield
        finally:
            self._local.discard(module)
