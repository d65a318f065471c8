"""The suite for accelerators.

How to use it::

    from poplin.testing import AcceleratorCompliance

    class TestAcme(AcceleratorCompliance):
        name = "acme"                 # or: def create(self): return AcmeAccelerator()
        tolerance = 1e-5              # how far a short training may end from that on the CPU

        def prepare(self): ...        # where a fake must stand for the hardware: called in each process of the checks

Where the hardware is absent, what can be asked without it is checked, and the rest is reported as not claimed.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from poplin import Fabric, registry
from poplin.registry.names import fold, parse_reference
from poplin.testing.case import Case, error_or_none
from poplin.testing.checks import requirement
from poplin.testing.suites.extension import Common
from poplin.testing.suites.training import SmallNet, fabric_training, optimizer_of, plain_training, seeded

_NEVER_DEVICES: tuple[Any, ...] = (0, -5, "many", "", True, 2.5, [], [0, 0], [-1], [10**6], None)


class Queries(Common):
    """Checks of what is asked of an accelerator's class, with or without hardware."""

    kind = "accelerators"

    @requirement("Accelerator.name")
    def test_it_is_called_what_it_is_looked_up_by(self, case: Case) -> None:
        """``name()`` answers on the class, with the name under which it is offered."""
        found = type(self.create()).name()
        case.expect(isinstance(found, str) and found, "a name, a string", repr(found))
        if self.name is not None:
            case.expect_equal(fold(found), fold(parse_reference(self.name).name), "name(), but for case and -_.")

    @requirement("Accelerator.device_type")
    def test_its_declarations_are_of_their_types(self, case: Case) -> None:
        """``device_type`` and ``collective_backend`` are strings (the latter may be None), ``priority`` is an int."""
        cls = type(self.create())
        known = isinstance(cls.device_type, str) and (cls.device_type or not cls.is_available())
        case.expect(known, "a string as device_type", repr(cls.device_type))
        case.expect(isinstance(cls.priority, int), "an int as priority", repr(cls.priority))
        backend = cls.collective_backend
        case.expect(
            backend is None or isinstance(backend, str), "None or a string as collective_backend", repr(backend)
        )

    @requirement("Accelerator.roles")
    def test_its_roles_are_in_the_metadata_of_its_package(self, case: Case) -> None:
        """``roles`` is a tuple of "auto" and "gpu", and the package declares an entry point for each of them."""
        cls = type(self.create())
        roles = cls.roles
        fits = isinstance(roles, tuple) and set(roles) <= {"auto", "gpu"}
        case.expect(fits, 'a tuple of "auto" and "gpu"', repr(roles))
        if self.name is None:
            return
        provider = registry.find(self.kind, self.name).provider
        if provider.distribution in ("poplin-core", "runtime"):
            return
        declared = {
            row.name
            for row in registry.rows(load=False)
            if row.kind == self.kind and row.status == "role" and row.distribution == provider.distribution
        }
        missing = [role for role in roles if role not in declared]
        case.expect(not missing, f"entry points {list(roles)} under poplin.accelerators", f"without {missing}")

    @requirement("Accelerator.availability")
    def test_availability_has_a_reason(self, case: Case) -> None:
        """``availability()`` is ``(bool, reason)`` with words for people, and ``is_available()`` agrees."""
        cls = type(self.create())
        found = cls.availability()
        fits = isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], bool) and isinstance(found[1], str)
        case.expect(fits, "(True or False, a reason)", repr(found))
        case.expect(found[1].strip(), "a reason in words", repr(found[1]))
        case.expect_equal(cls.is_available(), found[0], "is_available(), as availability() says")

    @requirement("Accelerator.availability", alone=True)
    def test_asking_makes_no_context_and_spoils_no_fork(self, case: Case) -> None:
        """After every query no device module of torch is initialised, and a forked process works."""
        self._ask_everything()
        up = [name for name in (type(self.create()).device_type, _torch_device_type()) if _is_initialized(name)]
        case.expect(not up, "no device context after the queries", f"initialised: {up}")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = int(torch.ones(3).sum().item() != 3)
                self._ask_everything()
            finally:
                os._exit(code)
        case.expect_equal(os.waitpid(pid, 0)[1], 0, "exit code of a process that was forked after the queries")

    @requirement("Accelerator.availability", alone=True)
    def test_asking_claims_no_device_slot(self, case: Case) -> None:
        """After every query torch's one slot for out-of-tree devices (PrivateUse1) belongs to whom it did."""
        before = torch._C._get_privateuse1_backend_name()
        self._ask_everything()
        case.expect_equal(torch._C._get_privateuse1_backend_name(), before, "the owner of the slot PrivateUse1")

    @requirement("Accelerator.parse_devices")
    def test_devices_that_cannot_be_meant_are_refused(self, case: Case) -> None:
        """Zero, words, booleans, a device twice or one that isn't here are a TypeError or a ValueError."""
        cls = type(self.create())
        if not cls.is_available() and error_or_none(cls.auto_device_count) is not None:
            case.not_claimed(f"no device is here: {cls.availability()[1]}")
        for written in _NEVER_DEVICES:
            case.expect_error(
                (TypeError, ValueError),
                lambda written=written: cls.get_parallel_devices(cls.parse_devices(written)),  # type: ignore[misc]
                f"for devices={written!r}",
            )

    @requirement("Accelerator.auto_device_count")
    def test_the_number_of_devices_fits_the_availability(self, case: Case) -> None:
        """``auto_device_count()`` is 1 or more where a device is available, and never negative."""
        cls = type(self.create())
        error = error_or_none(cls.auto_device_count)
        if error is not None and not cls.is_available():
            case.not_claimed(f"no device is here, and they can't be counted: {error}")
        count = cls.auto_device_count()
        case.expect(isinstance(count, int) and count >= int(cls.is_available()), "1 or more where available", count)

    def _ask_everything(self) -> None:
        cls = type(self.create())
        for query in (
            cls.availability,
            cls.is_available,
            cls.auto_device_count,
            cls.name,
            lambda: cls.parse_devices(1),
        ):
            error_or_none(query)


class OnTheDevice(Queries):
    """Checks of what an accelerator does on a device that is here."""

    #: How far values may be from those on the CPU.
    tolerance: float = 1e-5

    def _device(self, case: Case) -> tuple[Any, torch.device]:
        """An accelerator, and its first device, made current.

        Raises:
            NotClaimed: there is none here.
        """
        made = self.create()
        available, reason = type(made).availability()
        if not available:
            case.not_claimed(f"no device is here: {reason}")
        device = type(made).get_parallel_devices(type(made).parse_devices(1))[0]
        made.setup_device(device)
        return made, device

    @requirement("Accelerator.get_parallel_devices")
    def test_devices_are_torch_devices_of_its_type(self, case: Case) -> None:
        """One torch device for each process, of ``device_type``."""
        made, device = self._device(case)
        case.expect(isinstance(device, torch.device), "a torch.device", repr(device))
        case.expect_equal(device.type, made.device_type, "its type")

    @requirement("Accelerator.setup_device")
    def test_tensors_work_on_the_device(self, case: Case) -> None:
        """Once it is current, tensors are made, multiplied and copied back as on the CPU."""
        made, device = self._device(case)
        made.setup_device(device)  # again is fine
        one = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
        found = (one.to(device) @ one.to(device)).cpu()
        made.synchronize()
        case.expect_close(found, one @ one, "a product of matrices", self.tolerance)

    @requirement("Accelerator.seed")
    def test_seeding_and_restoring_the_generator_repeat_its_numbers(self, case: Case) -> None:
        """The same seed, or a state that is restored, gives the same random numbers on the device."""
        made, device = self._device(case)
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            made.seed(3)
            runs.append(torch.randn(4, device=device).cpu())
        case.expect_close(runs[1], runs[0], "random numbers after the same seed", 0.0)
        state = made.rng_state()
        if state is None:
            return  # no generator of its own
        fits = isinstance(state, torch.Tensor) and state.dtype == torch.uint8 and state.device.type == "cpu"
        case.expect(fits, "a uint8 tensor on the CPU as rng_state()", repr(state))
        first = torch.randn(4, device=device).cpu()
        made.set_rng_state(state)
        case.expect_close(torch.randn(4, device=device).cpu(), first, "random numbers after set_rng_state()", 0.0)

    @requirement("Accelerator.memory")
    def test_memory_and_peak_rates_are_numbers_or_unknown(self, case: Case) -> None:
        """``memory()`` maps names to bytes, ``peak_flops`` is None or above zero, ``empty_cache`` may be called."""
        made, _ = self._device(case)
        made.empty_cache()
        memory = made.memory()
        fits = isinstance(memory, dict) and all(isinstance(value, int) and value >= 0 for value in memory.values())
        case.expect(fits, "a mapping of names to bytes", repr(memory))
        peak = made.peak_flops(torch.float32)
        case.expect(peak is None or peak > 0, "None, or a rate above zero", peak)

    @requirement("Accelerator")
    def test_a_model_trains_as_on_the_cpu(self, case: Case) -> None:
        """A short training by Fabric moves every parameter, to the values of plain torch on the CPU."""
        made, device = self._device(case)
        fabric = case.use(Fabric(accelerator=made, strategy="single_device", devices=1))
        case.expect_equal(fabric.device, device, "fabric.device")
        module = seeded(SmallNet)
        wrapped, optimizer = fabric.setup(module, optimizer_of(module))
        start = {name: value.clone() for name, value in seeded(SmallNet).named_parameters()}
        fabric_training(fabric, wrapped, optimizer, 3)
        reference = seeded(SmallNet)
        plain_training(reference, 3)
        for name, value in wrapped.named_parameters():
            case.expect(not torch.equal(value.detach().cpu(), start[name]), f"{name!r} has moved", "its first values")
            case.expect_close(value, dict(reference.named_parameters())[name], f"{name!r}", self.tolerance)

    @requirement("Accelerator.teardown")
    def test_it_can_be_used_again_after_teardown(self, case: Case) -> None:
        """After ``teardown`` a new object can set the device up again."""
        made, device = self._device(case)
        made.teardown()
        other = self.create()
        other.setup_device(device)
        case.expect_close(torch.ones(2, device=device).cpu(), torch.ones(2), "a tensor on the device", 0.0)


class AcceleratorCompliance(OnTheDevice):
    """What every accelerator must do: answer without touching the device, and train on it where it is here."""


def _torch_device_type() -> str:
    """The type of the accelerator that torch was built for, whether it is here or not."""
    found = torch.accelerator.current_accelerator(check_available=False)
    return found.type if found is not None else "cpu"


def _is_initialized(device_type: str) -> bool:
    if device_type in ("", "cpu"):
        return False
    try:
        module = torch.get_device_module(device_type)
    except (RuntimeError, AttributeError):
        return False
    return bool(hasattr(module, "is_initialized") and module.is_initialized())
