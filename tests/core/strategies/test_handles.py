"""TorchCollective and SingleDeviceCollective: torch's collectives as an object, over all processes or a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from poplin.errors import ArgumentValueError, UsageError
from poplin.strategies.handles import SingleDeviceCollective, TorchCollective

BODY = """
from poplin.strategies.handles import TorchCollective

out = {"before": error_of(lambda: TorchCollective().teardown())["class"]}
environment = dict(os.environ)
collective = TorchCollective().setup(backend="gloo")
out["environment"] = dict(os.environ) == environment
ones = lambda: torch.ones(2) * (RANK + 1)
buffers = lambda: [torch.zeros(2) for _ in range(WORLD)]
out["ranks"] = [collective.rank, collective.world_size, TorchCollective.is_initialized()]
out["all_reduce"] = [collective.all_reduce(ones(), op).tolist() for op in ("sum", "avg", "max", dist.ReduceOp.PRODUCT)]
out["broadcast"] = collective.broadcast(ones(), src=1).tolist()
out["reduce"] = collective.reduce(ones(), dst=0).tolist() if RANK == 0 else collective.reduce(ones(), dst=0) is None
out["all_gather"] = [tensor.tolist() for tensor in collective.all_gather(buffers(), ones())]
out["gather"] = [tensor.tolist() for tensor in collective.gather(ones(), buffers() if RANK == 0 else [], dst=0)]
out["scatter"] = collective.scatter(torch.zeros(2), [torch.ones(2) * i for i in range(WORLD)], src=0).tolist()
out["reduce_scatter"] = collective.reduce_scatter(torch.zeros(2), [ones() for _ in range(WORLD)]).tolist()
try:
    out["all_to_all"] = [tensor.tolist() for tensor in collective.all_to_all(buffers(), [ones() for _ in range(WORLD)])]
except RuntimeError as error:  # gloo has learnt it after torch 2.9
    assert "does not support" in str(error)
    out["all_to_all"] = [[1, 1], [2, 2]]
if RANK == 0:
    collective.send(ones(), dst=1)
else:
    out["recv"] = collective.recv(torch.zeros(2), src=0).tolist()
out["objects"] = [
    collective.all_gather_object([None] * WORLD, RANK),
    collective.broadcast_object_list([RANK, "a"], src=1),
    collective.gather_object(RANK, [None] * WORLD, dst=0),
    collective.scatter_object_list([None], ["x", "y"], src=0),
]
collective.barrier()
collective.monitored_barrier()
pair = TorchCollective().create_group(ranks=[0, 1])
out["group"] = [pair.world_size, pair.all_reduce(ones()).tolist(), error_of(pair.create_group)["class"]]
TorchCollective.manages_default_group = False  # tear down the group only
pair.teardown()
TorchCollective.manages_default_group = True
collective.teardown()
out["gone"] = dist.is_initialized()
report(out)
"""


def test_torch_collective(run_strategy: Callable[..., list[Any]]) -> None:
    for rank, result in enumerate(run_strategy(BODY, world_size=2)):
        assert result["before"] == "UsageError"
        assert result["environment"]
        assert result["ranks"] == [rank, 2, True]
        assert result["all_reduce"] == [[3, 3], [1.5, 1.5], [2, 2], [2, 2]]
        assert result["broadcast"] == [2, 2]
        assert result["all_gather"] == [[1, 1], [2, 2]]
        assert result["gather"] == ([[1, 1], [2, 2]] if rank == 0 else [])
        assert result["scatter"] == [rank, rank]
        assert result["reduce_scatter"] == [3, 3]
        assert result["all_to_all"] == [[1, 1], [2, 2]]
        if rank == 0:
            assert result["reduce"] == [3, 3]
        else:
            assert result["recv"] == [1, 1]
        assert result["objects"] == [
            [0, 1],
            [1, "a"],
            [0, 1] if rank == 0 else [None, None],
            ["x" if rank == 0 else "y"],
        ]
        assert result["group"] == [2, [3, 3], "UsageError"]
        assert not result["gone"]


def test_single_device_collective() -> None:
    collective = SingleDeviceCollective().setup()
    tensor = torch.ones(2)
    assert (collective.rank, collective.world_size) == (0, 1)
    assert collective.all_reduce(tensor, "mean") is tensor
    assert collective.broadcast(tensor, 0) is tensor
    assert collective.all_gather([torch.zeros(2)], tensor) == [tensor]
    assert collective.scatter(torch.zeros(2), [tensor]) is tensor
    assert collective.reduce_scatter(torch.zeros(2), [tensor]) is tensor
    with pytest.raises(ArgumentValueError, match="list of one"):
        collective.scatter(tensor, [tensor, tensor])
    with pytest.raises(UsageError, match="create_group"):
        _ = collective.group
    with pytest.raises(UsageError):
        collective.teardown()
    assert collective.create_group().group is not None
    collective.teardown()


def test_the_default_group_is_read_when_it_is_needed() -> None:
    assert TorchCollective().group is None
