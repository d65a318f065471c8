"""What ``dp`` does to modules and to outputs of replicas. Without GPUs torch's DataParallel passes calls through."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from poplin.errors import ArgumentValueError
from poplin.precision import Precision
from poplin.strategies.collectives import reduce_nested
from poplin.testing.strategies import bind_strategy
from poplin_cuda.accelerator import CUDAAccelerator
from poplin_cuda.replicas import Replicas
from poplin_cuda.strategy import DataParallelStrategy
from poplin_precision.mixed import MixedPrecision


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.layer(data)

    def embed(self, data: torch.Tensor) -> torch.Tensor:
        return self(data) + 1


def started(precision: Precision | None = None) -> DataParallelStrategy:
    """A strategy that takes the CPU for its device."""
    return bind_strategy(
        DataParallelStrategy(), accelerator=CUDAAccelerator(), devices=[torch.device("cpu")], precision=precision
    )


def test_a_module_keeps_its_names() -> None:
    strategy, module = started(), Net()
    wrapped = strategy.setup_module(module)
    assert isinstance(wrapped, Replicas)
    assert strategy.original_module(wrapped) is module
    assert list(strategy.get_module_state_dict(wrapped)) == ["layer.weight", "layer.bias"]
    state = {name: torch.ones_like(value) for name, value in module.state_dict().items()}
    strategy.load_module_state_dict(wrapped, state)
    assert module.layer.weight.sum() == 8
    data = torch.randn(3, 4)
    assert torch.equal(wrapped(data), module(data))


def test_a_marked_method_goes_through_the_replicas() -> None:
    strategy, module = started(), Net()
    wrapped = strategy.setup_module(module)
    doors: list[Any] = []
    wrapped.register_forward_pre_hook(lambda module, args: doors.append(module))
    data = torch.randn(3, 4)
    assert torch.equal(strategy.forward_method(wrapped, "embed")(data), module.embed(data))
    assert doors == [wrapped]


def test_replicas_in_threads_run_in_the_precision() -> None:
    # torch turns autocast on in these threads, but with the device type's default dtype
    strategy = started(MixedPrecision("bf16-mixed", device="cpu"))
    replica = strategy.setup_module(Net()).module
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(replica(torch.randn(3, 4))))
    thread.start()
    thread.join()
    assert results[0].dtype is torch.bfloat16
    plain = started().setup_module(Net()).module
    assert type(plain).__name__ == "MethodDispatch"  # nothing to do, and nothing in the way


@pytest.mark.parametrize(
    ("op", "value"), [("mean", 2.5), (None, 2.5), ("avg", 2.5), ("sum", 10), ("max", 4), ("min", 1), ("product", 24)]
)
def test_outputs_of_replicas_are_reduced_to_one_value(op: Any, value: float) -> None:
    strategy = started()
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    reduced = strategy.all_reduce(losses, reduce_op=op)
    assert reduced.shape == ()
    assert reduced.item() == pytest.approx(value)
    reduced.backward()
    assert losses.grad is not None
    assert strategy.all_reduce(torch.arange(1, 5).view(2, 2), reduce_op=op).item() == pytest.approx(value)


def test_a_reduction_that_it_has_not() -> None:
    with pytest.raises(ArgumentValueError, match="reduces by mean, sum"):
        started().all_reduce(torch.arange(3), reduce_op="bxor")


def test_a_collection_of_outputs_is_reduced_one_by_one() -> None:
    metrics = {"loss": torch.tensor([1.0, 3.0]), "accuracy": torch.tensor([[0.5, 1.0], [0.0, 0.5]]), "step": 4}
    reduced = reduce_nested(started(), metrics)
    assert {name: value.item() for name, value in reduced.items()} == {"loss": 2.0, "accuracy": 0.5, "step": 4.0}


def test_a_frozen_module_and_the_rest_of_a_step() -> None:
    strategy = started()
    module = Net().requires_grad_(False)
    wrapped = strategy.setup_module(module)
    assert not wrapped(torch.randn(2, 4)).requires_grad
    with strategy.no_backward_sync(wrapped):
        pass
    strategy.barrier("here")
    assert strategy.broadcast([1]) == [1]
    assert strategy.world_size == 1
    assert not strategy.needs_launch
