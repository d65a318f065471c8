"""How many devices there are, and if none, why; without CUDA being initialised (the fakes refuse it)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from poplin.errors import ArgumentTypeError, ArgumentValueError, DevicesBusyError
from poplin_cuda import driver
from poplin_cuda.accelerator import CUDAAccelerator, find_usable_cuda_devices

VISIBLE = [
    ("", 0),
    ("-1", 0),
    ("NoDevFiles", 0),
    ("0", 1),
    ("0,2", 2),
    ("2,0", 2),
    (" 1 , 2", 2),
    ("0,0", 0),
    ("3", 1),
    ("4", 0),
    ("1,7,2", 1),
    ("0,-1,2", 1),
    ("GPU-bbbb2222", 1),
    ("GPU-bbbb", 1),
    ("GPU-bbbb,GPU-cccc", 2),
    ("GPU-aaaa", 0),  # fits two
    ("GPU-zzzz", 0),
]


def test_a_torch_without_cuda_says_so(environment: Any) -> None:
    if torch.backends.cuda.is_built():
        pytest.skip("this torch is built with CUDA")
    available, reason = CUDAAccelerator.availability()
    assert not available
    assert not CUDAAccelerator.is_available()
    assert "built without CUDA" in reason
    assert CUDAAccelerator.auto_device_count() == 0


def test_every_device_is_counted(gpus: Any) -> None:
    assert CUDAAccelerator.availability() == (True, "NVML counts 4 device(s)")
    assert CUDAAccelerator.auto_device_count() == 4


@pytest.mark.parametrize(("visible", "count"), VISIBLE)
def test_what_the_environment_leaves_visible(gpus: Any, visible: str, count: int) -> None:
    gpus(CUDA_VISIBLE_DEVICES=visible)
    available, reason = CUDAAccelerator.availability()
    assert CUDAAccelerator.auto_device_count() == count
    assert available == (count > 0)
    assert f"CUDA_VISIBLE_DEVICES={visible!r}" in reason
    if not count:
        assert "this machine has 4 device(s), and the environment hides all of them" in reason


@pytest.mark.parametrize(("visible", "count"), [("MIG-1a,MIG-2b", 2), ("MIG-1a", 1), ("MIG-none", 0)])
def test_mig_instances_are_counted_by_the_driver(gpus: Any, visible: str, count: int) -> None:
    gpus(CUDA_VISIBLE_DEVICES=visible, FAKE_DEVICES=count)
    assert CUDAAccelerator.auto_device_count() == count
    available, reason = CUDAAccelerator.availability()
    assert available == (count > 0)
    assert visible in reason


def test_a_machine_without_a_driver(without_driver: Any) -> None:
    available, reason = CUDAAccelerator.availability()
    assert not available
    assert "no NVIDIA driver is installed" in reason


def test_a_driver_that_does_not_run(gpus: Any) -> None:
    gpus(FAKE_NVML_ERROR=9, FAKE_ERROR=100)
    assert CUDAAccelerator.availability() == (False, "the driver says: error 100, no fake device")


def test_a_board_without_nvml(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "NVML", "libno-such-nvml.so")
    gpus(FAKE_DEVICES=1)
    assert CUDAAccelerator.availability() == (True, "the driver counts 1 device(s)")


def test_a_driver_older_than_torch_needs(gpus: Any) -> None:
    gpus(FAKE_CUDA_VERSION=12080)
    available, reason = CUDAAccelerator.availability()
    assert not available
    assert "runs CUDA up to 12.8" in reason
    assert "built for CUDA 13.0" in reason
    gpus(FAKE_CUDA_VERSION=13020)
    assert CUDAAccelerator.is_available()


def test_a_driver_that_never_answers(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "TIME_LIMIT", 0.3)
    gpus(FAKE_SLEEP=2)
    available, reason = CUDAAccelerator.availability()
    assert not available
    assert "no answer within 0.3 s" in reason


def test_rocm_devices_are_called_cuda_too(gpus: Any, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(driver, "HIP", library)
    gpus(FAKE_DEVICES=3, HIP_VISIBLE_DEVICES="0,1,2")
    assert CUDAAccelerator.availability() == (True, "the driver counts 3 device(s) (HIP_VISIBLE_DEVICES='0,1,2')")
    gpus(FAKE_BUSY=1)
    assert find_usable_cuda_devices() == [0, 2]
    monkeypatch.setattr(driver, "HIP", "libno-such-hip.so")
    driver._counted.cache_clear()
    assert "can't be loaded" in CUDAAccelerator.availability()[1]


def test_once_cuda_is_in_use_torch_is_asked_itself(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(driver, "NVML", "libno-such-nvml.so")
    assert CUDAAccelerator.availability() == (True, "torch counts 2 device(s)")


# --- what users write


@pytest.mark.parametrize(
    ("written", "indices"),
    [
        (1, [0]),
        (3, [0, 1, 2]),
        ("2", [0, 1]),
        (-1, [0, 1, 2, 3]),
        ("-1", [0, 1, 2, 3]),
        ([1, 0], [1, 0]),
        ("3,1", [3, 1]),
        ("2,", [2]),
    ],
)
def test_devices_as_users_write_them(gpus: Any, written: Any, indices: list[int]) -> None:
    parsed = CUDAAccelerator.parse_devices(written)
    assert CUDAAccelerator.get_parallel_devices(parsed) == [torch.device("cuda", index) for index in indices]


@pytest.mark.parametrize("written", [0, "0", -2, "-2", [], "", ",", [0, 0], "1,1", [-1], [0, -1], [4], "0,9", 5, "two"])
def test_devices_that_can_not_be_meant(gpus: Any, written: Any) -> None:
    with pytest.raises(ArgumentValueError, match=r"devices="):
        CUDAAccelerator.parse_devices(written)


@pytest.mark.parametrize("written", [True, None, 1.0, [0.0], ["0"]])
def test_devices_of_another_type(gpus: Any, written: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"devices="):
        CUDAAccelerator.parse_devices(written)


# --- devices that nobody else has


def test_usable_devices_are_found_in_a_process_of_their_own(gpus: Any) -> None:
    assert find_usable_cuda_devices() == [0, 1, 2, 3]
    gpus(FAKE_BUSY=0)
    assert find_usable_cuda_devices() == [1, 2, 3]
    assert find_usable_cuda_devices(2) == [1, 2]
    assert find_usable_cuda_devices(0) == []
    with pytest.raises(DevicesBusyError, match=r"only 3 can be used now: another process has \[0\]"):
        find_usable_cuda_devices(4)
    with pytest.raises(RuntimeError):  # as Lightning raises it
        find_usable_cuda_devices(4)


def test_usable_devices_are_tried_here_once_cuda_is_in_use(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(size: int, device: torch.device) -> None:
        if device.index == 1:
            raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch, "empty", empty)
    assert find_usable_cuda_devices() == [0, 2]
    assert find_usable_cuda_devices(1) == [0]


def test_usable_devices_that_can_not_be_meant(gpus: Any) -> None:
    for wrong in (True, "2", None):
        with pytest.raises(ArgumentTypeError):
            find_usable_cuda_devices(wrong)
    with pytest.raises(ArgumentValueError, match="-1 for all"):
        find_usable_cuda_devices(-2)
    with pytest.raises(ArgumentValueError, match="there are 4"):
        find_usable_cuda_devices(5)
    gpus(CUDA_VISIBLE_DEVICES="")
    with pytest.raises(ArgumentValueError, match="hides all of them"):
        find_usable_cuda_devices()
