"""The accelerators `tpu`, on either runtime, and `xla`, every device of torch_xla's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import torch

from poplin.accelerators import Accelerator
from poplin.errors import ArgumentValueError, SelectionError
from poplin_tpu import launch_environment, runtime

if TYPE_CHECKING:
    from poplin.selection import Selection


class _DeviceType:
    """torch's device type of the runtime that serves TPUs here."""

    def __get__(self, instance: Any, owner: type[Accelerator]) -> str:
        return runtime.choose().device_type


class _Backend:
    """TorchTPU's process-group backend; torch_xla's strategies have their own way."""

    def __get__(self, instance: Any, owner: type[Accelerator]) -> str | None:
        return "tpu_dist" if owner.device_type == runtime.TORCH_TPU else None


class TorchXLADevices(Accelerator):
    """What torch_xla's devices have in common: a process has one of them, and the runtime knows how many there are."""

    _is_another_current = False

    @classmethod
    def parse_devices(cls, devices: int | str | list[int]) -> list[int]:
        """One device, or all of them: torch_xla starts processes for nothing in between.

        Raises:
            ArgumentTypeError, ArgumentValueError: another number, or what can't be meant.
        """
        indices: list[int] = super().parse_devices(devices)
        count = cls.auto_device_count()
        if cls.device_type == runtime.TORCH_XLA and len(indices) not in (1, count):
            raise ArgumentValueError(
                f"devices={devices!r}: torch_xla runs on one device or on all {count} of this machine. Use "
                f"devices=1, or "
                "devices='auto'."
            )
        return indices

    @classmethod
    def auto_device_count(cls) -> int:
        """The devices of this machine; those of the CPU are virtual, and as many as CPU_NUM_DEVICES says."""
        if cls.device_type != runtime.TORCH_XLA:
            return super().auto_device_count()
        xr = runtime.xla("runtime")
        if xr.device_type() == "CPU":  # asking the runtime would fix the number before processes are started
            return int(os.environ.get("CPU_NUM_DEVICES", "1"))
        return int(runtime.xla("_internal.tpu").num_available_devices())

    def setup_device(self, device: torch.device) -> None:
        """Under torch_xla a process has one device, which is current, unless another was asked for."""
        if device.type != runtime.TORCH_XLA:
            super().setup_device(device)
        elif device.index:
            self._make_current(device)

    def teardown(self) -> None:
        """Make torch_xla's first device current again, if another was."""
        if self._is_another_current:
            self._make_current(torch.device(runtime.TORCH_XLA, 0))

    def _make_current(self, device: torch.device) -> None:
        runtime.xla()._XLAC._xla_set_default_device(str(device))
        self._is_another_current = bool(device.index)

    def seed(self, seed: int) -> None:
        if self.device_type != runtime.TORCH_XLA:
            return super().seed(seed)
        runtime.xla("core.xla_model").set_rng_state(seed)
        return None

    def rng_state(self) -> torch.Tensor | None:
        if self.device_type != runtime.TORCH_XLA:
            return super().rng_state()
        state = int(runtime.xla("core.xla_model").get_rng_state())  # an unsigned number of 64 bits
        return torch.frombuffer(bytearray(state.to_bytes(8, "little")), dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor) -> None:
        if self.device_type != runtime.TORCH_XLA:
            return super().set_rng_state(state)
        runtime.xla("core.xla_model").set_rng_state(int.from_bytes(bytes(state.tolist()), "little"))
        return None

    def synchronize(self) -> None:
        if self.device_type != runtime.TORCH_XLA:
            return super().synchronize()
        runtime.xla().sync(wait=True)
        return None

    def empty_cache(self) -> None:
        if self.device_type != runtime.TORCH_XLA:
            super().empty_cache()

    def memory(self) -> dict[str, int]:
        if self.device_type != runtime.TORCH_XLA:
            return super().memory()
        try:
            info = runtime.xla("core.xla_model").get_memory_info()
        except RuntimeError:  # not every device tells, the CPU for one
            return {}
        known = {"allocated": "bytes_used", "peak": "peak_bytes_used"}
        return {ours: int(info[its]) for ours, its in known.items() if its in info}


class TPUAccelerator(TorchXLADevices):
    """TPUs, by TorchTPU where it has a device, else by torch_xla.

    Under TorchTPU the general strategies serve them; under torch_xla those of this package do.
    """

    device_type = cast("str", _DeviceType())
    collective_backend = cast("str | None", _Backend())
    priority = 100

    @staticmethod
    def name() -> str:
        return "tpu"

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        """Asks torch, the PCI bus, and only with a chip on it torch_xla, in another process and with a time limit."""
        choice = runtime.choose()
        return choice.usable, choice.reason

    @classmethod
    def launch_variables(cls, num_devices: int, num_nodes: int) -> dict[str, str]:
        """TorchTPU's addresses, topology and session, which every process must find in its environment.

        Raises:
            LaunchError: TorchTPU can't tell them.
        """
        return launch_environment.variables(num_devices, num_nodes) if cls.device_type == runtime.TORCH_TPU else {}

    def check(self, selection: Selection) -> None:
        """Several processes of somebody else's, a torchrun's for one, must have been given TorchTPU's variables.

        Raises:
            SelectionError: they are not there.
        """
        if self.device_type != runtime.TORCH_TPU or len(selection.devices) * selection.num_nodes == 1:
            return
        if selection.environment.creates_processes_externally and not launch_environment.is_prepared():
            raise SelectionError(
                f"The processes exist already, and {launch_environment.ADDRESSES}, by which those of TorchTPU find "
                "each other, is not set. Start them with `poplin run --accelerator=tpu`, or prepare the shell that "
                'runs torchrun: eval "$(python -m torch.tpu.distributed)".'
            )


class XLAAccelerator(TorchXLADevices):
    """The device that torch_xla uses here (PJRT_DEVICE): a TPU, the CPU... It must be asked for by name."""

    device_type = runtime.TORCH_XLA
    roles = ()

    @staticmethod
    def name() -> str:
        return "xla"

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        """Whether torch_xla is installed for this torch, and can be imported: it has been asked for."""
        package = runtime.torch_xla()
        if not package.usable:
            return False, package.reason
        try:
            runtime.xla()
        except (Exception, SystemExit) as error:
            return False, f"{package.reason} is installed, and can't be imported: {type(error).__name__}: {error}"
        device = os.environ.get("PJRT_DEVICE")
        return True, f"{package.reason}, {f'PJRT_DEVICE={device}' if device else 'which chooses the device'}"
