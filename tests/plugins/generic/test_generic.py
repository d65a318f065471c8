"""The accelerators by what torch says; devices that aren't here are torch's answers replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
import torch

from poplin.accelerators import CPUAccelerator
from poplin.errors import ArgumentValueError, HardwareAbsentError, SelectionError
from poplin.selection import Request, Selection, select
from poplin_generic import accelerator as home
from poplin_generic import plugin


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("POPLIN_", "LT_", "SLURM_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def choose(**arguments: Any) -> Selection:
    return select(Request.read(**arguments))


def line(selection: Selection, subject: str) -> str:
    (decision,) = [decision for decision in selection.trace.decisions if decision.subject == subject]
    return f"{decision.choice} {decision.reason} {decision.passed_over}"


@pytest.fixture
def xpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two Intel GPUs."""
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)


def test_the_plugin_is_light() -> None:
    code = "import sys, poplin_generic.plugin as p; p.poplin_accelerators(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_offers() -> None:
    offers = plugin.poplin_accelerators()
    assert list(offers) == ["xpu", "npu", "hpu", "mtia", "torch"]
    for name, offer in offers.items():
        accelerator = offer()
        assert accelerator.name() == name
        assert CPUAccelerator.priority < accelerator.priority < 0
        if name != "torch":  # whose roles depend on what torch reports, and who serves it
            assert accelerator.roles == (("auto", "gpu") if name == "xpu" else ("auto",))


@pytest.mark.parametrize("name", ["xpu", "npu", "hpu", "mtia", "torch"])
def test_a_device_that_is_not_here_is_an_error_with_the_reason(name: str) -> None:
    with pytest.raises(HardwareAbsentError, match=f"{name!r} .*is installed, and has no device here: .*torch"):
        choose(accelerator=name)


def test_a_package_that_torch_has_not_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda package: "2.9.0" if package == "torch_npu" else version(package))
    available, reason = home.NPUAccelerator.availability()
    assert not available
    assert "torch_npu 2.9.0 is installed, and torch has not loaded it" in reason
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in reason


@pytest.mark.parametrize("asked", ["xpu", "gpu", "auto"])
def test_an_intel_gpu(xpus: None, asked: str) -> None:
    selection = choose(accelerator=asked, devices=1)
    assert type(selection.accelerator) is home.XPUAccelerator
    assert selection.devices == (torch.device("xpu", 0),)
    if asked != "xpu":
        assert "torch (poplin-generic" in line(selection, "accelerator")  # passed over: it serves the same device
        assert "cuda (poplin-cuda" in line(selection, "accelerator")


def test_devices(xpus: None) -> None:
    assert choose(accelerator="xpu", devices=[1]).devices == (torch.device("xpu", 1),)
    assert choose(accelerator="torch", devices="1,").devices == (torch.device("xpu", 1),)
    with pytest.raises(ArgumentValueError, match="2 device"):
        choose(accelerator="xpu", devices=3)


def test_several_processes_use_the_backend_that_torch_has_for_the_device(
    xpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # this torch is built without it, so there is none
    assert home.XPUAccelerator.collective_backend is None
    with pytest.raises(SelectionError, match="collective_backend"):
        choose(accelerator="xpu", devices=2, strategy="ddp")
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda backend: True)
    selection = choose(accelerator="auto")
    assert type(selection.strategy).__name__ == "DDPStrategy"
    assert selection.strategy.backend_spec() == "cpu:gloo,xpu:xccl"


def test_where_this_package_is_blocked_auto_is_an_error_not_the_cpu(
    xpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPLIN_DISABLE_PLUGINS", "poplin-generic")
    with pytest.raises(SelectionError, match="torch sees an accelerator here .'xpu'.*poplin-generic"):
        choose()
    assert choose(accelerator="cpu").accelerator.name() == "cpu"


def test_a_stranger_who_serves_the_device_comes_first(xpus: None) -> None:
    from poplin import registry

    class Acme(home.XPUAccelerator):
        priority = 0

        @staticmethod
        def name() -> str:
            return "acme"

    registry.register("accelerators", "acme", Acme)
    try:
        selection = choose(accelerator="auto", devices=1)
        assert selection.accelerator.name() == "acme"
        assert "xpu (poplin-generic" in line(selection, "accelerator")
    finally:
        registry.unregister("accelerators", "acme")


def test_what_happens_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch.xpu, "set_device", calls.append)
    monkeypatch.setattr(torch.xpu, "manual_seed_all", calls.append)
    accelerator = home.XPUAccelerator()
    accelerator.setup_device(torch.device("xpu", 1))
    accelerator.seed(3)
    assert calls == [1, 3]  # by its index, which every device module takes
