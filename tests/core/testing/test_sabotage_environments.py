"""Cluster environments with one planted fault each: the check that names it fails, and no other."""

import os
import signal
import subprocess
import threading

import pytest

from poplin.environments import ClusterEnvironment
from poplin.errors import SelectionError
from poplin.testing import EnvironmentCompliance, run_suite


class Acme(ClusterEnvironment):
    """Reads ``ACME_RANK`` and the like. Without a fault."""

    creates_processes_externally = True

    @staticmethod
    def detect():
        return "ACME_RANK" in os.environ

    @property
    def main_address(self):
        return os.environ["ACME_ADDRESS"]

    @property
    def main_port(self):
        return int(os.environ["ACME_PORT"])

    def world_size(self):
        return int(os.environ["ACME_SIZE"])

    def set_world_size(self, size):
        pass

    def global_rank(self):
        return int(os.environ["ACME_RANK"])

    def set_global_rank(self, rank):
        pass

    def local_rank(self):
        return int(os.environ["ACME_LOCAL_RANK"])

    def node_rank(self):
        return int(os.environ["ACME_NODE"])

    def validate_settings(self, num_devices, num_nodes):
        if num_devices * num_nodes != self.world_size():
            raise SelectionError("another number of processes was started")


class Suite(EnvironmentCompliance):
    slow = True  # those that are not are run with the ordinary tests
    environment = Acme

    def create(self):
        return self.environment()

    def variables(self, task):
        return {
            "ACME_RANK": str(task.global_rank),
            "ACME_LOCAL_RANK": str(task.local_rank),
            "ACME_NODE": str(task.node_rank),
            "ACME_SIZE": str(task.world_size),
            "ACME_ADDRESS": task.address,
            "ACME_PORT": str(task.port),
        }


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

    class environment(Acme):
        def set_world_size(self, number):
            pass


class NotSendable(Suite):
    finds = "it can be sent to another process before use"

    class environment(Acme):
        def __init__(self):
            self.lock = threading.Lock()


class TeardownNeedsUse(Suite):
    finds = "teardown needs no use"

    class environment(Acme):
        bound = False

        def bind(self, selection):
            super().bind(selection)
            self.bound = True

        def teardown(self):
            super().teardown()
            if not self.bound:
                raise RuntimeError("it was never bound")


class DetectsAlways(Suite):
    slow = False
    finds = "it does not detect itself where nothing started the process"

    class environment(Acme):
        @staticmethod
        def detect():
            return True


class AsksAProgram(Suite):
    finds = "detection only looks"

    class environment(Acme):
        @staticmethod
        def detect():
            subprocess.run(["true"], check=False)
            return "ACME_RANK" in os.environ


class PriorityInWords(Suite):
    finds = "its declarations are of their types"

    class environment(Acme):
        priority = 0.5


class DetectsNever(Suite):
    finds = "it detects itself in a process that was started"

    class environment(Acme):
        @staticmethod
        def detect():
            return "ACME_JOB" in os.environ


class LocalRankIsGlobal(Suite):
    slow = False
    finds = "the ranks are those of the processes"

    class environment(Acme):
        def local_rank(self):
            return self.global_rank()


class PortOfItsOwn(Suite):
    finds = "every process is told the same meeting point"

    class environment(Acme):
        @property
        def main_port(self):
            return 20_000 + self.global_rank()


class AcceptsAnything(Suite):
    finds = "it accepts what was started and refuses anything else"

    class environment(Acme):
        def validate_settings(self, num_devices, num_nodes):
            pass


class RanksAreSet(Suite):
    finds = "launchers cannot change ranks that exist"

    class environment(Acme):
        rank = None

        def set_global_rank(self, rank):
            self.rank = rank

        def global_rank(self):
            return super().global_rank() if self.rank is None else self.rank


class KeepsTheSignal(Suite):
    finds = "teardown gives everything back"

    class environment(Acme):
        def bind(self, selection):
            super().bind(selection)
            signal.signal(signal.SIGUSR1, lambda *about: None)


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] * one.slow) for one in FAULTS]
)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    failed = {outcome.check: outcome.message for outcome in run_suite(suite) if outcome.status == "failed"}
    assert set(failed) == ({suite.finds} if suite.finds else set()), "\n".join(failed.values())


def test_every_check_of_environments_is_named_by_a_fault():
    from poplin.testing.checks import requirements

    assert {one.title for one in requirements(EnvironmentCompliance)} == {suite.finds for suite in FAULTS} - {None}
