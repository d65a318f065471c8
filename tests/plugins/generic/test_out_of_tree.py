"""An out-of-tree device in torch's one slot (PrivateUse1): real to torch, in Python, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip(f"torch {torch.__version__} has no out-of-tree devices written in Python", allow_module_level=True)

SCRIPT = r"""
import json
import sys
import types

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from poplin import Fabric, registry
from poplin.errors import HardwareAbsentError

devices = types.ModuleType("acme_device")
devices.is_available = lambda: True
devices.is_initialized = lambda: False
devices.device_count = lambda: 2
devices.current_device = lambda: 0
devices._is_in_bad_fork = lambda: False
devices.manual_seed_all = lambda seed: None
report = {}
registry.refresh()
report["free slot"] = Fabric(accelerator="cpu", devices=1).device.type
Fabric().close()  # every accelerator is asked, and none takes the slot
report["name before"] = torch._C._get_privateuse1_backend_name()

_setup_privateuseone_for_python_backend("acme", devices)
for name in ("auto", "torch"):
    fabric = Fabric(accelerator=name, devices=1)
    report[name] = [fabric.accelerator.name(), str(fabric.device), fabric.accelerator.device_type]
    report[f"{name} explained"] = fabric.explain()
    fabric.close()
try:
    Fabric(accelerator="npu")
except HardwareAbsentError as error:
    report["npu"] = str(error)
try:
    Fabric(accelerator="hpu")
except HardwareAbsentError as error:
    report["hpu"] = str(error)
accelerator = registry.find("accelerators", "torch").create()
report["backend before"] = accelerator.collective_backend
torch.distributed.Backend.register_backend("acmecl", lambda *a: None, devices=["acme"])
report["backend"] = accelerator.collective_backend
report["roles"] = accelerator.roles


class Acme(type(accelerator)):
    device_type = "acme"
    roles = ("auto",)
    priority = 0

    @staticmethod
    def name():
        return "acme"


registry.register("accelerators", "acme", Acme)
fabric = Fabric(devices=1)
report["dedicated"] = [fabric.accelerator.name(), fabric.explain()]
print("REPORT", json.dumps(report))
"""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("POPLIN_", "LT_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = next(line for line in done.stdout.splitlines() if line.startswith("REPORT "))
    told: dict[str, Any] = json.loads(text.removeprefix("REPORT "))
    return told


def test_asking_for_availability_takes_no_slot(report: dict[str, Any]) -> None:
    assert report["name before"] == "privateuseone"


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_it_is_served_without_an_accelerator_of_its_own(report: dict[str, Any], name: str) -> None:
    assert report[name] == ["torch", "acme:0", "acme"]
    assert "torch reports 2 'acme' device(s)" in report[f"{name} explained"]


def test_a_taken_slot_is_an_error_that_names_its_owner(report: dict[str, Any]) -> None:
    assert "slot for out-of-tree devices (PrivateUse1) is taken by 'acme' (acme_device)" in report["npu"]
    assert "PrivateUse1" not in report["hpu"]  # torch has a type for it


def test_its_backend_is_the_one_in_torchs_table(report: dict[str, Any]) -> None:
    assert report["backend before"] is None
    assert report["backend"] == "acmecl"
    assert report["roles"] == ["auto"]


def test_a_package_made_for_it_wins(report: dict[str, Any]) -> None:
    name, explained = report["dedicated"]
    assert name == "acme"
    assert "torch (poplin-generic 0.1.0)" in explained
