"""What happens on a device, and what the accelerator says about itself."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from poplin.errors import ArgumentValueError
from poplin_cuda import accelerator as home
from poplin_cuda import peak, plugin
from poplin_cuda.accelerator import CUDAAccelerator


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One A100 that is made current."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA A100-SXM4-80GB")
    home._tell_of_tensor_cores.cache_clear()
    yield current
    home._tell_of_tensor_cores.cache_clear()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(home, "rank_zero_info", told.append)
    return told


@pytest.fixture
def matmul(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``matmul("tf32")``: how float32 products are done."""

    def choose(value: str) -> None:
        settings = SimpleNamespace(fp32_precision=value)
        monkeypatch.setattr(torch.backends.cuda, "matmul", settings)

    return choose


def bound(precision: str = "32-true", rank: int = 0) -> CUDAAccelerator:
    accelerator = CUDAAccelerator()
    selection: Any = SimpleNamespace(
        precision=SimpleNamespace(precision=precision), environment=SimpleNamespace(global_rank=lambda: rank)
    )
    accelerator.bind(selection)
    return accelerator


def test_the_plugin_is_light() -> None:
    code = (
        "import sys, poplin_cuda.plugin as p; p.poplin_accelerators(); p.poplin_strategies(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_what_it_is() -> None:
    assert plugin.poplin_accelerators()["cuda"]().name() == "cuda"
    assert CUDAAccelerator.roles == ("auto", "gpu")
    assert CUDAAccelerator.priority > 0
    assert CUDAAccelerator.collective_backend == "nccl"


def test_it_is_imported_from_the_faces() -> None:
    from poplin import accelerators, strategies
    from poplin.accelerators.cuda import CUDAAccelerator as deep
    from poplin_cuda.strategy import DataParallelStrategy

    assert accelerators.CUDAAccelerator is deep is CUDAAccelerator
    assert accelerators.find_usable_cuda_devices is home.find_usable_cuda_devices
    assert strategies.DataParallelStrategy is DataParallelStrategy


def test_a_device_is_made_current_and_no_other_type(device: Any, notes: list[str]) -> None:
    CUDAAccelerator().setup_device(torch.device("cuda", 3))
    assert device == [3]  # by its index, which every device module takes
    with pytest.raises(ArgumentValueError, match="no CUDA device"):
        CUDAAccelerator().setup_device(torch.device("cpu"))


def test_idle_tensor_cores_are_told_once(device: Any, notes: list[str], matmul: Any) -> None:
    matmul("none")
    bound(rank=1).setup_device(torch.device("cuda", 1))
    assert notes == []
    bound().setup_device(torch.device("cuda", 0))
    bound().setup_device(torch.device("cuda", 1))
    assert len(notes) == 1
    assert "NVIDIA A100" in notes[0]
    assert "set_float32_matmul_precision('high')" in notes[0]


@pytest.mark.parametrize("chosen", ["tf32", "ieee"])
def test_who_has_chosen_a_matmul_precision_is_told_nothing(
    device: Any, notes: list[str], matmul: Any, chosen: str
) -> None:
    matmul(chosen)
    bound().setup_device(torch.device("cuda", 0))
    assert notes == []


def test_nothing_is_told_under_another_precision_or_of_an_older_device(
    device: Any, notes: list[str], matmul: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    matmul("none")
    bound("bf16-mixed").setup_device(torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    bound().setup_device(torch.device("cuda", 0))
    assert notes == []


def test_each_of_torchs_ways_to_choose_tf32_is_seen() -> None:
    code = """
import os, torch
from poplin_cuda import peak, accelerator as a

for choice in [
    "torch.set_float32_matmul_precision('high')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.fp32_precision = 'tf32'",
]:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, choice
        continue
    assert not peak.uses_tf32() and not a._matmul_precision_was_chosen()
    exec(choice)
    assert peak.uses_tf32() and a._matmul_precision_was_chosen()
    os._exit(0)
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, "-c", code], timeout=60, env=environment).returncode == 0


@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.5),
        ("NVIDIA H100 PCIe", torch.float16, 756.5),
        ("NVIDIA H100 NVL", torch.float16, 835.5),
        ("NVIDIA H200", torch.float32, 67),
        ("NVIDIA A100-SXM4-80GB", torch.float64, 19.5),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", torch.float16, None),
        ("NVIDIA A10G", torch.float16, 70),
        ("NVIDIA A10", torch.bfloat16, 125),
        ("NVIDIA L4", torch.bfloat16, 121),
        ("NVIDIA L40S", torch.bfloat16, 362.05),
        ("Tesla V100-SXM2-16GB", torch.float16, 125),
        ("Tesla V100-SXM2-16GB", torch.bfloat16, None),
        ("Tesla T4", torch.float32, 8.1),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, 165.2),
        ("NVIDIA GeForce RTX 4090 D", torch.bfloat16, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16, None),
        ("NVIDIA GeForce RTX 3090 Ti", torch.float16, 80),
        ("AMD Instinct MI300X", torch.bfloat16, 1307.4),
        ("Something New", torch.float32, None),
        ("NVIDIA H100 80GB HBM3", torch.int8, None),
    ],
)
def test_peak_rates(name: str, dtype: torch.dtype, teraflops: float | None) -> None:
    expected = None if teraflops is None else pytest.approx(teraflops * 1e12)
    assert peak.peak_flops(name, dtype) == expected


def test_the_peak_of_float32_is_that_of_tf32_where_it_is_used(device: Any, matmul: Any) -> None:
    matmul("none")
    assert CUDAAccelerator().peak_flops(torch.float32) == pytest.approx(19.5e12)
    matmul("tf32")
    assert CUDAAccelerator().peak_flops(torch.float32) == pytest.approx(156e12)


def test_memory_seed_and_the_rest_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: len(name))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: calls.append(seed))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    accelerator = CUDAAccelerator()
    assert accelerator.memory() == {"allocated": 16, "reserved": 15, "peak": 20}
    accelerator.seed(7)
    accelerator.synchronize()
    accelerator.empty_cache()
    assert calls == [7, "synchronize", "empty_cache"]
