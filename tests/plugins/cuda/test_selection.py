"""``cuda``, ``gpu`` and ``auto``, by the installed packages; only torch's and the driver's answers are replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poplin
from poplin.accelerators import CPUAccelerator
from poplin.errors import (
    ArgumentValueError,
    ContradictionError,
    HardwareAbsentError,
    LaunchError,
    SelectionError,
)
from poplin.selection import Request, Selection, select
from poplin_cuda.accelerator import CUDAAccelerator
from poplin_cuda.strategy import DataParallelStrategy


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("POPLIN_", "LT_", "SLURM_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def choose(**arguments: Any) -> Selection:
    return select(Request.read(**arguments))


def line(selection: Selection, subject: str) -> str:
    """The decision about ``subject`` and all that was passed over, as one text."""
    (decision,) = [decision for decision in selection.trace.decisions if decision.subject == subject]
    return f"{decision.choice} {decision.reason} {decision.passed_over}"


@pytest.mark.parametrize("asked", ["cuda", "gpu", "auto", "CUDA"])
def test_every_way_to_ask_for_it(gpus: Any, asked: str) -> None:
    selection = choose(accelerator=asked, devices=1)
    assert type(selection.accelerator) is CUDAAccelerator
    assert selection.devices == (torch.device("cuda", 0),)
    assert "NVML counts 4 device(s)" in line(selection, "accelerator")
    if asked in ("gpu", "auto"):
        assert "highest priority" in line(selection, "accelerator")
        assert "Metal (MPS) exists on macOS only" in line(selection, "accelerator")


def test_all_devices_by_default_and_the_strategy_for_them(gpus: Any) -> None:
    gpus(CUDA_VISIBLE_DEVICES="3,1")
    selection = choose(accelerator="gpu")
    assert selection.devices == (torch.device("cuda", 0), torch.device("cuda", 1))
    assert type(selection.strategy).__name__ == "DDPStrategy"
    assert choose(accelerator="cuda", devices=[1, 0]).devices == (torch.device("cuda", 1), torch.device("cuda", 0))
    assert choose(accelerator="cuda", devices="-1").devices == selection.devices
    with pytest.raises(ArgumentValueError, match="2 device"):
        choose(accelerator="cuda", devices=3)


@pytest.mark.parametrize("asked", ["cuda", "gpu"])
def test_no_device_is_an_error_with_the_reason(gpus: Any, asked: str) -> None:
    gpus(CUDA_VISIBLE_DEVICES="")
    with pytest.raises(HardwareAbsentError, match=r"hides all of them \(CUDA_VISIBLE_DEVICES=''\)"):
        choose(accelerator=asked)


def test_auto_on_a_machine_without_a_driver_is_the_cpu_and_the_trace_says_why(without_driver: Any) -> None:
    selection = choose(devices=1)
    assert type(selection.accelerator) is CPUAccelerator
    assert "no NVIDIA driver is installed" in line(selection, "accelerator")


def test_a_dedicated_package_goes_before_what_torch_reports(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    selection = choose(devices=1)
    assert type(selection.accelerator) is CUDAAccelerator
    assert "torch (poplin-generic" in line(selection, "accelerator")
    assert type(choose(accelerator="torch", devices=1).accelerator).__name__ == "TorchAccelerator"


def test_where_this_package_is_blocked_what_torch_reports_serves(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    gpus(POPLIN_DISABLE_PLUGINS="poplin-cuda")
    selection = choose(accelerator="gpu", devices=1)
    assert type(selection.accelerator).__name__ == "TorchAccelerator"
    assert selection.devices == (torch.device("cuda", 0),)


def test_where_nothing_serves_the_device_auto_is_an_error(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    gpus(POPLIN_DISABLE_PLUGINS="poplin-cuda,poplin-generic")
    with pytest.raises(SelectionError, match="no installed plugin serves it.*poplin-cuda"):
        choose(devices=1)
    assert type(choose(accelerator="cpu", devices=1).accelerator) is CPUAccelerator


def test_several_processes_use_nccl(gpus: Any) -> None:
    selection = choose(accelerator="cuda", devices=2, strategy="ddp")
    assert selection.strategy.backend_spec() == "cpu:gloo,cuda:nccl"


def test_a_process_that_uses_cuda_already_is_not_forked(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = poplin.Fabric(accelerator="cuda", devices=2, strategy="ddp_fork")
    assert not torch.cuda.is_initialized()  # making a Fabric leaves it so
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(LaunchError, match="does not survive a fork"):
        fabric.launch(lambda fabric: None)
    fabric.close()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-true"])
def test_a_precision_learns_the_device_type(gpus: Any, precision: str) -> None:
    selection = choose(accelerator="cuda", devices=1, precision=precision)
    assert selection.precision.device_type == "cuda"


# --- dp


def test_dp_is_one_process_on_several_devices(gpus: Any) -> None:
    selection = choose(accelerator="gpu", devices=[1, 3], strategy="dp")
    assert type(selection.strategy) is DataParallelStrategy
    assert selection.strategy.root_device == torch.device("cuda", 1)
    assert selection.launcher is None
    assert selection.strategy.distributed_sampler_kwargs is None


def test_dp_on_the_cpu_is_ddp() -> None:
    with pytest.warns(UserWarning, match="'ddp' is used instead"):
        selection = choose(accelerator="cpu", devices=2, strategy="dp")
    assert type(selection.strategy).__name__ == "DDPStrategy"
    assert "'dp' is 'ddp' on this accelerator by poplin-cuda" in line(selection, "strategy")


def test_dp_as_an_object_is_never_redirected() -> None:
    with pytest.raises(SelectionError, match="strategy='ddp'"):
        choose(accelerator="cpu", devices=2, strategy=DataParallelStrategy())


def test_dp_carries_its_devices(gpus: Any) -> None:
    strategy = DataParallelStrategy(parallel_devices=[torch.device("cuda", 2), torch.device("cuda", 0)])
    assert choose(strategy=strategy).devices == (torch.device("cuda", 2), torch.device("cuda", 0))
    with pytest.raises(ContradictionError):
        choose(strategy=strategy, devices=1)


def test_dp_is_one_process_only(gpus: Any) -> None:
    with pytest.raises(SelectionError, match="num_nodes=2"):
        choose(accelerator="cuda", devices=2, num_nodes=2, strategy="dp")
    gpus(
        RANK=0, LOCAL_RANK=0, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, GROUP_RANK=0, TORCHELASTIC_RUN_ID="x",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=1,
    )  # fmt: skip
    with pytest.raises(SelectionError, match="each of which would train alone"):
        choose(accelerator="cuda", devices=2, strategy="dp")
