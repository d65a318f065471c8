"""The accelerator: NVIDIA GPUs, and AMD's under a ROCm build of torch, which calls them ``cuda`` too."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

import torch

from poplin.accelerators import Accelerator
from poplin.errors import ArgumentTypeError, ArgumentValueError, DevicesBusyError
from poplin.utilities import rank_zero_info
from poplin_cuda import driver, peak

if TYPE_CHECKING:
    from poplin.environments import ClusterEnvironment
    from poplin.selection import Selection


class CUDAAccelerator(Accelerator):
    """GPUs of torch's device type ``cuda``.

    Availability and counting leave CUDA uninitialised in this process, so that it can still be forked. Which devices
    there are is decided by ``CUDA_VISIBLE_DEVICES`` (indices, or names of GPUs and MIG instances), as torch reads it.
    """

    device_type = "cuda"
    roles = ("auto", "gpu")
    priority = 10
    collective_backend = "gloo" if sys.platform == "win32" else "nccl"  # NCCL isn't made for Windows

    def __init__(self) -> None:
        self._precision = "32-true"
        self._environment: ClusterEnvironment | None = None

    @staticmethod
    def name() -> str:
        return "cuda"

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        found = driver.devices()
        return found.count > 0, found.reason

    @classmethod
    def auto_device_count(cls) -> int:
        return driver.devices().count

    def bind(self, selection: Selection) -> None:
        self._precision = selection.precision.precision
        self._environment = selection.environment

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current one, and say once on rank 0 if its Tensor Cores lie idle.

        Raises:
            ArgumentValueError: it is no CUDA device.
        """
        if device.type != "cuda":
            raise ArgumentValueError(f"{device} is no CUDA device, and the accelerator is 'cuda'.")
        super().setup_device(device)
        if self._environment is not None and self._environment.global_rank() != 0:
            return
        if self._precision == "32-true" and not _matmul_precision_was_chosen() and _has_tf32(device):
            _tell_of_tensor_cores(torch.cuda.get_device_name(device))

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """The current device's peak rate of dense matrix products by its data sheet; see :mod:`poplin_cuda.peak`."""
        return peak.peak_flops(torch.cuda.get_device_name(), dtype)


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """Indices of devices on which a process gets a context now: not those that another process has for itself.

    They are tried in a process made for that, so that this one can still be forked and holds nothing on them; if CUDA
    is in use in this process already, they are tried here. Another process may take a device right afterwards.

    Args:
        num_devices: how many are needed; -1 returns all that can be used.

    Raises:
        ArgumentTypeError: not a number.
        ArgumentValueError: less than -1, or more than there are devices.
        DevicesBusyError: there are as many, and not enough of them can be used (a RuntimeError).
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int):
        raise ArgumentTypeError(f"find_usable_cuda_devices({num_devices!r}): give a number of devices, or -1 for all.")
    if num_devices < -1:
        raise ArgumentValueError(f"find_usable_cuda_devices({num_devices}): give a number of devices, or -1 for all.")
    if num_devices == 0:
        return []
    found = driver.devices()
    if num_devices > found.count or found.count == 0:
        needed = "some devices" if num_devices == -1 else f"{num_devices} device(s)"
        raise ArgumentValueError(
            f"find_usable_cuda_devices() was asked for {needed}, and there are {found.count}: {found.reason}."
        )
    usable = driver.usable_devices()
    if usable is None:
        usable = _usable_here(found.count, num_devices)
    if num_devices == -1:
        return usable
    if len(usable) < num_devices:
        busy = [index for index in range(found.count) if index not in usable]
        raise DevicesBusyError(
            f"find_usable_cuda_devices() was asked for {num_devices} device(s), and only {len(usable)} can be used "
            f"now: another process has {busy} for itself, or all of their memory. Wait for it, or ask for fewer."
        )
    return usable[:num_devices]


def _usable_here(count: int, needed: int) -> list[int]:
    usable: list[int] = []
    for index in range(count):
        try:
            torch.empty(1, device=torch.device("cuda", index))
        except RuntimeError:
            continue
        usable.append(index)
        if len(usable) == needed:
            break
    return usable


def _has_tf32(device: torch.device) -> bool:
    """Whether the device's Tensor Cores can do float32 products: from compute capability 8.0 on."""
    return torch.version.hip is None and bool(torch.cuda.get_device_capability(device)[0] >= 8)


def _matmul_precision_was_chosen() -> bool:
    """Whether the user said how float32 products are done; "ieee" is a choice, "none" is torch's default."""
    return bool(torch.backends.cuda.matmul.fp32_precision != "none")


@functools.cache
def _tell_of_tensor_cores(device_name: str) -> None:
    rank_zero_info(
        f"{device_name} has Tensor Cores, which float32 matrix products use only if they may round their inputs to "
        "TF32 (10 bits of mantissa). If your model bears that, torch.set_float32_matmul_precision('high') makes "
        "training several times faster; torch.backends.cuda.matmul.fp32_precision = 'ieee' keeps float32 and ends this "
        "note."
    )
