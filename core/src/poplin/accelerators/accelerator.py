"""The interface of an accelerator: one type of device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.extension import Extension

if TYPE_CHECKING:
    from poplin.selection import Selection


class Accelerator(Extension, ABC):
    """One type of device, and all that the core asks about it.

    The queries are class methods: the core asks them before it makes an instance, and an answer must make no
    context on a device, spoil no fork, claim no device slot of torch, and import no runtime that isn't needed.
    Must be given: :meth:`name` and :attr:`device_type`. Everything else has a default by torch's own device
    module (``torch.get_device_module``).
    """

    #: torch's device type: ``torch.device(device_type, 0)`` is a device. No default: nothing is a CPU in silence.
    device_type: ClassVar[str]
    #: The roles it takes: ``("auto",)``, with ``"gpu"`` too for a GPU, ``()`` for what must be asked for by name. Its
    #: package is asked for a role only if its metadata has an entry point of the role's name in the kind's group.
    roles: ClassVar[tuple[str, ...]] = ("auto",)
    #: Among the available accelerators of a role the highest priority wins.
    priority: ClassVar[int] = 0
    #: Process-group backend for its tensors. None: only strategies with a way of their own serve several devices.
    collective_backend: ClassVar[str | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Accelerator:
        if not isinstance(getattr(cls, "device_type", None), str):
            raise TypeError(f"{cls.__name__} gives no `device_type`: name torch's type of its devices, a string.")
        return super().__new__(cls)

    # --- queries: no instance, no context on the device

    @staticmethod
    @abstractmethod
    def name() -> str:
        """The name that users look it up by. Called by the selection and by messages."""

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        """Whether a device is here, and why (not).

        Called by the selection, for an accelerator asked for by name and for each candidate of a role. Either this
        or :meth:`is_available` may be overridden: each follows from the other. The default asks torch's device
        module.

        Returns:
            ``(available, reason)``; the reason is shown to users, in the trace and in errors.
        """
        if _overrides(cls, "is_available"):
            available = bool(cls.is_available())
            return available, f"{cls.__name__}.is_available() says {'yes' if available else 'no'}"
        try:
            torch.device(cls.device_type)
        except RuntimeError:  # whose words are a list of all the types that torch knows
            return False, f"this torch {torch.__version__} knows no device type {cls.device_type!r}"
        try:
            module = torch.get_device_module(cls.device_type)
        except (RuntimeError, AttributeError):
            return False, f"nothing has brought torch {torch.__version__} its module for {cls.device_type!r} devices"
        if not module.is_available():
            return False, f"torch reports no {cls.device_type!r} device"
        return True, f"torch reports {module.device_count()} {cls.device_type!r} device(s)"

    @classmethod
    def is_available(cls) -> bool:
        """Whether a device is here; see :meth:`availability`. Called by users."""
        return cls.availability()[0]

    @classmethod
    def parse_devices(cls, devices: int | str | list[int]) -> Any:
        """What the user wrote as ``devices`` (never ``"auto"``), as device indices.

        Called by the selection before :meth:`get_parallel_devices`. The default takes a count (``2``, ``"2"``; ``-1``
        and ``"-1"`` are all), or indices (``[0, 1]``, ``"0,1"``).

        Raises:
            ArgumentTypeError, ArgumentValueError: what was written can't be meant, or asks for more than is here.
        """
        return parse_device_indices(devices, cls.auto_device_count(), cls.name())

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> list[torch.device]:
        """Device indices as torch devices, one for each process of this node.

        Called by the selection with what :meth:`parse_devices` returned.
        """
        return [torch.device(cls.device_type, index) for index in devices]

    @classmethod
    def auto_device_count(cls) -> int:
        """How many devices ``devices="auto"`` means. Called by the selection. The default is all there are."""
        return int(torch.get_device_module(cls.device_type).device_count())

    @classmethod
    def launch_variables(cls, num_devices: int, num_nodes: int) -> dict[str, str]:
        """Environment variables that the processes of one launch share, decided before the first of them starts.

        Called by the built-in launchers and ``poplin run`` where several processes are started, in the process that
        starts them. The default is none.

        Args:
            num_devices: processes of this node.
            num_nodes: nodes of the run.

        Raises:
            LaunchError: they can't be had.
        """
        return {}

    # --- what happens on the device

    def check(self, selection: Selection) -> None:
        """Veto a combination that this accelerator can't serve.

        Called by the selection when every choice is made, before anything is bound. The default accepts all.

        Raises:
            SelectionError: with what to do instead.
        """

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current one. Called by ``Strategy.setup_environment`` in each process."""
        module = torch.get_device_module(self.device_type)
        if hasattr(module, "set_device") and device.index is not None:
            module.set_device(device.index)  # an index, which every device module takes

    def seed(self, seed: int) -> None:
        """Seed the generators of this device type. Called by ``seed_everything`` when such devices are in use."""
        module = torch.get_device_module(self.device_type)
        if hasattr(module, "manual_seed_all"):
            module.manual_seed_all(seed)

    def rng_state(self) -> torch.Tensor | None:
        """State of the current device's generator (a uint8 tensor on the CPU), or None. Called when Fabric is saved."""
        module = torch.get_device_module(self.device_type)
        return module.get_rng_state() if hasattr(module, "get_rng_state") else None

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Restore what :meth:`rng_state` returned. Called when Fabric is loaded."""
        module = torch.get_device_module(self.device_type)
        if hasattr(module, "set_rng_state"):
            module.set_rng_state(state)

    def synchronize(self) -> None:
        """Wait for all work queued on the current device. Called by monitors and benchmarks, never per step."""
        module = torch.get_device_module(self.device_type)
        if hasattr(module, "synchronize"):
            module.synchronize()

    def empty_cache(self) -> None:
        """Give cached device memory back to the system. Called by users and monitors."""
        module = torch.get_device_module(self.device_type)
        if hasattr(module, "empty_cache"):
            module.empty_cache()

    def memory(self) -> dict[str, int]:
        """Memory of the current device in bytes: those of ``allocated``, ``reserved``, ``peak`` that torch can tell.

        Called by monitors.
        """
        module = torch.get_device_module(self.device_type)
        queries = {"allocated": "memory_allocated", "reserved": "memory_reserved", "peak": "max_memory_allocated"}
        return {key: int(getattr(module, name)()) for key, name in queries.items() if hasattr(module, name)}

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """The device's peak rate for dense matrix work in ``dtype``, in FLOP/s, or None where it isn't known.

        Called by the throughput monitor, for the model FLOPs utilisation.
        """
        return None


def parse_device_indices(devices: int | str | list[int], count: int, name: str) -> list[int]:
    """Read what a user wrote as ``devices``: a count, ``-1`` for all, or indices.

    Args:
        devices: ``2``, ``"2"``, ``-1``, ``"-1"``, ``[0, 1]`` or ``"0,1"``.
        count: how many devices there are.
        name: of the accelerator, for messages.

    Raises:
        ArgumentTypeError: neither an int, a string nor a list of ints.
        ArgumentValueError: not a number, nothing, a device twice, or one that isn't here.
    """
    written = devices
    if isinstance(devices, bool) or not isinstance(devices, (int, str, list, tuple)):
        raise ArgumentTypeError(f"devices={written!r}: give a count (2), indices ([0, 1] or '0,1'), -1 or 'auto'.")
    if isinstance(devices, str):
        try:
            numbers = [int(part) for part in devices.split(",") if part.strip()]
        except ValueError:
            raise ArgumentValueError(
                f"devices={written!r}: not a number. Give a count ('2'), indices ('0,1'), '-1' or 'auto'."
            ) from None
        devices = numbers if "," in devices or not numbers else numbers[0]
    if isinstance(devices, int):
        if devices == -1:
            devices = count
        if devices < 1:
            raise ArgumentValueError(f"devices={written!r}: at least one device is needed; -1 means all of them.")
        indices = list(range(devices))
    else:
        indices = list(devices)
        if not all(isinstance(index, int) and not isinstance(index, bool) for index in indices):
            raise ArgumentTypeError(f"devices={written!r}: indices must be ints.")
    if not indices:
        raise ArgumentValueError(f"devices={written!r}: at least one device is needed.")
    if len(set(indices)) != len(indices):
        raise ArgumentValueError(f"devices={written!r}: a device stands in it twice.")
    absent = [index for index in indices if not 0 <= index < count]
    if absent:
        here = f"indices 0 to {count - 1}" if count else "none"
        raise ArgumentValueError(f"devices={written!r}: accelerator {name!r} has {count} device(s) here ({here}).")
    return indices


def _overrides(cls: type[Accelerator], name: str) -> bool:
    """Whether a subclass gave its own ``name`` (static and class methods included)."""
    return any(name in vars(base) for base in cls.__mro__[: cls.__mro__.index(Accelerator)])
