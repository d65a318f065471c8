"""What the package offers, and what its strategy accepts."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from poplin.accelerators import CPUAccelerator
from poplin.errors import ArgumentTypeError, ArgumentValueError, SelectionError
from poplin.testing.strategies import bind_strategy
from poplin_ddp import plugin
from poplin_ddp.strategy import DDPStrategy


def test_the_plugin_is_light() -> None:
    code = "import sys, poplin_ddp.plugin as p; p.poplin_strategies(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("name", "launcher", "unused"),
    [
        ("ddp", "subprocess", None),
        ("ddp_spawn", "spawn", None),
        ("ddp_fork", "fork", None),
        ("ddp_notebook", "fork", None),
        ("ddp_find_unused_parameters_true", "subprocess", True),
        ("ddp_spawn_find_unused_parameters_false", "spawn", False),
        ("ddp_notebook_find_unused_parameters_true", "fork", True),
    ],
)
def test_offers(name: str, launcher: str, unused: bool | None) -> None:
    strategy = plugin.poplin_strategies()[name]()
    assert isinstance(strategy, DDPStrategy)
    assert strategy.launcher_name == launcher
    assert strategy.ddp_kwargs.get("find_unused_parameters") == unused
    assert strategy.needs_launch


def accelerator(**members: Any) -> Any:
    return type("Acme", (CPUAccelerator,), {"device_type": "acme", **members})()


def test_it_answers_auto_for_several_devices() -> None:
    select = plugin.poplin_select_strategy
    assert select(CPUAccelerator(), 1, 1, False) is None
    assert select(CPUAccelerator(), 2, 1, False) == "ddp"
    assert select(CPUAccelerator(), 1, 2, False) == "ddp"
    assert select(CPUAccelerator(), 2, 1, True) == "ddp_notebook"
    assert select(accelerator(collective_backend=None), 2, 1, False) is None
    assert select(accelerator(collective_backend="acl"), 2, 1, False) == "ddp"


def test_torchs_arguments_are_checked_by_name() -> None:
    strategy = DDPStrategy(static_graph=True, bucket_cap_mb=10, start_method="forkserver")
    assert strategy.ddp_kwargs == {"static_graph": True, "bucket_cap_mb": 10}
    assert strategy.launcher_name == "forkserver"
    with pytest.raises(ArgumentTypeError, match="Did you mean 'find_unused_parameters'"):
        DDPStrategy(find_unused_parameter=True)
    with pytest.raises(ArgumentTypeError, match="decides for each module"):
        DDPStrategy(device_ids=[0])
    with pytest.raises(ArgumentValueError, match="'popen', 'spawn'"):
        DDPStrategy(start_method="thread")


def test_an_accelerator_without_a_backend_is_refused() -> None:
    strategy = DDPStrategy()
    selection: Any = SimpleNamespace(accelerator=accelerator(collective_backend=None), devices=(1, 2), num_nodes=1)
    with pytest.raises(SelectionError, match="collective_backend"):
        strategy.check(selection)
    DDPStrategy(process_group_backend="acl").check(selection)


def test_inputs_move_only_where_there_are_several_devices() -> None:
    strategy = bind_strategy(DDPStrategy(), world_size=2)
    import torch

    assert strategy._input_device(torch.nn.Linear(1, 1)) is None
