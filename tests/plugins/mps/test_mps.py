"""The accelerator without a Mac: torch's answers are replaced."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch

from poplin.errors import ArgumentValueError, HardwareAbsentError, SelectionError
from poplin.selection import Request, Selection, select
from poplin_mps.accelerator import MPSAccelerator


def choose(**arguments: Any) -> Selection:
    return select(Request.read(**arguments))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("POPLIN_", "LT_", "SLURM_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``mac(built=True, available=True, version="15.2")``: what platform and torch say."""

    def make(built: bool = True, available: bool = True, version: str = "15.2") -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), "arm64"))
        monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)

    yield make
    monkeypatch.undo()


def test_the_plugin_is_light() -> None:
    code = "import sys, poplin_mps.plugin as p; p.poplin_accelerators(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_it_is_imported_from_the_faces() -> None:
    from poplin import accelerators
    from poplin.accelerators.mps import MPSAccelerator as deep

    assert accelerators.MPSAccelerator is deep is MPSAccelerator


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_another_system_is_no_mac() -> None:
    available, reason = MPSAccelerator.availability()
    assert not available
    assert f"macOS only, and this is {platform.system()}" in reason
    with pytest.raises(HardwareAbsentError, match="macOS only"):
        choose(accelerator="mps")


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"built": False, "available": False}, "built without Metal"),
        ({"available": False, "version": "13.7"}, "needs macOS 14 or newer, and this is 13.7"),
        ({"available": False}, "no Metal device"),
        ({"available": False, "version": ""}, "no Metal device"),
    ],
)
def test_the_reason_on_a_mac(mac: Any, answers: Any, reason: str) -> None:
    mac(**answers)
    available, told = MPSAccelerator.availability()
    assert not available
    assert reason in told


@pytest.mark.parametrize("asked", ["mps", "gpu", "auto"])
@pytest.mark.parametrize("devices", ["auto", 1, "1", -1, [0], "0,"])
def test_there_is_one_device(mac: Any, asked: str, devices: Any) -> None:
    mac()
    selection = choose(accelerator=asked, devices=devices)
    assert type(selection.accelerator) is MPSAccelerator
    assert selection.devices == (torch.device("mps", 0),)
    assert type(selection.strategy).__name__ == "SingleDeviceStrategy"
    assert selection.launcher is None


@pytest.mark.parametrize("devices", [2, "2", [1], [0, 1]])
def test_and_no_second_one(mac: Any, devices: Any) -> None:
    mac()
    with pytest.raises(ArgumentValueError, match=r"'mps' has 1 device"):
        choose(accelerator="mps", devices=devices)


def test_strategies_of_several_processes_are_refused(mac: Any) -> None:
    mac()
    for strategy in ("ddp", "ddp_spawn"):
        with pytest.raises(SelectionError) as refused:
            choose(accelerator="mps", devices=1, strategy=strategy)
        assert "devices=1" in str(refused.value) or "accelerator='cpu'" in str(refused.value)
    from poplin_ddp.strategy import DDPStrategy

    with pytest.raises(SelectionError, match="accelerator='cpu'"):
        choose(accelerator="mps", strategy=DDPStrategy(process_group_backend="gloo"))
    with pytest.raises(SelectionError):
        choose(accelerator="mps", num_nodes=2)
    with pytest.raises(SelectionError, match="'dp'"):
        choose(accelerator="mps", strategy="dp")


def test_precisions(mac: Any) -> None:
    mac()
    selection = choose(accelerator="mps", precision="bf16-mixed")
    assert selection.precision.device_type == "mps"
    with selection.precision.forward_context():
        assert torch.is_autocast_enabled("mps")
        assert torch.get_autocast_dtype("mps") is torch.bfloat16
    with pytest.raises(SelectionError, match="no float64"):
        choose(accelerator="mps", precision="64-true")


def test_what_happens_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch.mps, "manual_seed", calls.append)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 5)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 8)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.zeros(3, dtype=torch.uint8))
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: calls.append(len(state)))
    accelerator = MPSAccelerator()
    accelerator.setup_device(torch.device("mps", 0))
    accelerator.seed(3)
    accelerator.synchronize()
    state = accelerator.rng_state()
    assert state is not None
    accelerator.set_rng_state(state)
    assert calls == [3, "synchronize", 3]
    assert accelerator.memory() == {"allocated": 5, "reserved": 8}
    assert accelerator.peak_flops(torch.float32) is None
    with pytest.raises(ArgumentValueError, match="no MPS device"):
        accelerator.setup_device(torch.device("cpu"))
