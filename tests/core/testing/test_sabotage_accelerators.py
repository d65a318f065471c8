"""Accelerators with one planted fault each: the check that names it fails, and no other."""

import os
import threading
import types

import pytest
import torch

from poplin.accelerators import Accelerator, parse_device_indices
from poplin.errors import UsageError
from poplin.testing import AcceleratorCompliance, run_suite


class Acme(Accelerator):
    """One device, whose memory is the CPU's. Without a fault."""

    device_type = "cpu"
    roles = ()

    @staticmethod
    def name():
        return "acme"

    @classmethod
    def availability(cls):
        return True, "one Acme"

    @classmethod
    def auto_device_count(cls):
        return 1

    @classmethod
    def get_parallel_devices(cls, devices):
        return [torch.device("cpu") for _ in devices]

    def setup_device(self, device):
        pass

    def rng_state(self):
        return torch.get_rng_state()

    def set_rng_state(self, state):
        torch.set_rng_state(state)


class Suite(AcceleratorCompliance):
    slow = True  # those that are not are run with the ordinary tests
    device = Acme

    def create(self):
        return self.device()


class Sound(Suite):
    slow = False
    finds = None


class NotOfItsKind(Suite):
    finds = "it is made without arguments and is of its kind"
    made = Acme()

    def create(self):
        return type(self).made


class OtherArguments(Suite):
    finds = "its members take what the interface says"

    class device(Acme):
        def peak_flops(self, kind):
            return None


class NotSendable(Suite):
    finds = "it can be sent to another process before use"

    class device(Acme):
        def __init__(self):
            self.lock = threading.Lock()


class TeardownNeedsUse(Suite):
    finds = "teardown needs no use"

    class device(Acme):
        current = False

        def setup_device(self, device):
            self.current = True

        def teardown(self):
            if not self.current:
                raise RuntimeError("no device was set up")


class NameOfTheClass(Suite):
    finds = "it is called what it is looked up by"

    class device(Acme):
        @staticmethod
        def name():
            return None

        @classmethod
        def parse_devices(cls, devices):
            return parse_device_indices(devices, 1, "acme")


class BackendAsAList(Suite):
    finds = "its declarations are of their types"

    class device(Acme):
        priority = 1.5


class RoleOfItsOwn(Suite):
    finds = "its roles are in the metadata of its package"

    class device(Acme):
        roles = ("auto", "fastest")


class NoReason(Suite):
    finds = "availability has a reason"

    class device(Acme):
        @classmethod
        def availability(cls):
            return True, ""


class SpoilsForks(Suite):
    slow = False
    finds = "asking makes no context and spoils no fork"

    class device(Acme):
        @classmethod
        def availability(cls):
            if os.environ.pop("ACME_ASKED", None) is None:
                os.environ["ACME_ASKED"] = "1"
                os.register_at_fork(after_in_child=lambda: os._exit(3))  # as a runtime that can't follow
            return True, "one Acme"


class ClaimsTheSlot(Suite):
    slow = False
    finds = "asking claims no device slot"

    class device(Acme):
        @classmethod
        def availability(cls):
            if torch._C._get_privateuse1_backend_name() == "privateuseone":
                torch.utils.rename_privateuse1_backend("acme")
                torch._register_device_module("acme", types.SimpleNamespace(is_available=lambda: False))
            return True, "one Acme"


class TakesAnything(Suite):
    finds = "devices that cannot be meant are refused"

    class device(Acme):
        @classmethod
        def parse_devices(cls, devices):
            return [0]


class CountsNone(Suite):
    finds = "the number of devices fits the availability"

    class device(Acme):
        @classmethod
        def auto_device_count(cls):
            return 0

        @classmethod
        def parse_devices(cls, devices):
            return parse_device_indices(devices, 1, "acme")


class OtherDevices(Suite):
    finds = (
        "devices are torch devices of its type",
        "tensors work on the device",
        "seeding and restoring the generator repeat its numbers",
        "memory and peak rates are numbers or unknown",
    )

    class device(Acme):
        device_type = "meta"


class LosesPrecision(Suite):
    finds = "tensors work on the device"

    class device(Acme):
        synchronized = False

        def synchronize(self):
            raise RuntimeError("the queue is lost")


class ForgetsTheGenerator(Suite):
    finds = "seeding and restoring the generator repeat its numbers"

    class device(Acme):
        def set_rng_state(self, state):
            pass


class MemoryInWords(Suite):
    finds = "memory and peak rates are numbers or unknown"

    class device(Acme):
        def memory(self):
            return {"allocated": "4 GiB"}


class OneUseOnly(Suite):
    finds = "it can be used again after teardown"

    class device(Acme):
        current = torn = False

        def setup_device(self, device):
            if type(self).torn:
                raise UsageError("the runtime was shut down")
            self.current = True

        def teardown(self):
            if self.current and self.only_once:
                type(self).torn = True

        @property
        def only_once(self):
            return "test_it_can_be_used_again" in os.getcwd()  # else every later check would fail, and rightly


class SwitchesGradientsOff(Suite):
    finds = "a model trains as on the cpu"

    class device(Acme):
        def setup_device(self, device):
            torch.set_grad_enabled(False)


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


def finds(suite):
    return {suite.finds} if isinstance(suite.finds, str) else set(suite.finds or ())


@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] * one.slow) for one in FAULTS]
)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    failed = {outcome.check: outcome.message for outcome in run_suite(suite) if outcome.status == "failed"}
    assert set(failed) == finds(suite), "\n".join(failed.values())


def test_every_check_of_accelerators_is_named_by_a_fault():
    from poplin.testing.checks import requirements

    assert {one.title for one in requirements(AcceleratorCompliance)} == set().union(*map(finds, FAULTS))
