"""The suite for cluster environments.

How to use it::

    from poplin.testing import EnvironmentCompliance, Task

    class TestAcme(EnvironmentCompliance):
        name = "acme"                 # or: def create(self): return AcmeEnvironment()

        def variables(self, task: Task):   # what the scheduler puts into the environment of one process
            return {"ACME_RANK": str(task.global_rank), "ACME_SIZE": str(task.world_size), ...}

Without ``variables`` nothing is known of the scheduler, and what is about its processes is reported as not claimed.
Every check runs in a process of its own environment.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from poplin.errors import SelectionError
from poplin.testing.case import Case, error_or_none
from poplin.testing.checks import requirement
from poplin.testing.suites.extension import Common
from poplin.testing.suites.listening import Listening


class Task(NamedTuple):
    """One process of a run, as a scheduler starts it."""

    global_rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_size: int
    num_nodes: int
    address: str
    port: int


class EnvironmentCompliance(Common):
    """What every cluster environment must do: detect itself and nothing else, tell the ranks, give everything back."""

    kind = "environments"
    #: Nodes, and processes on each, of the runs in the checks.
    layouts: tuple[tuple[int, int], ...] = ((1, 2), (2, 2))

    def variables(self, task: Task) -> Mapping[str, str] | None:
        """The environment variables of one process; None if nobody can tell."""
        return None

    @requirement("ClusterEnvironment.detect")
    def test_it_does_not_detect_itself_where_nothing_started_the_process(self, case: Case) -> None:
        """``detect`` is False without the scheduler's variables. (One of negative priority is a last resort.)"""
        environment = type(self.create())
        if environment.priority < 0:
            case.not_claimed(f"priority = {environment.priority}: it is a last resort")
        self._forget_variables()
        case.expect_equal(environment.detect(), False, "detect() without the variables of a scheduler")

    @requirement("ClusterEnvironment.detect")
    def test_detection_only_looks(self, case: Case) -> None:
        """``detect`` works on the class, and starts no process, connects to nobody and changes no variable."""
        environment = type(self.create())
        before = dict(os.environ)
        with Listening("subprocess.Popen", "os.fork", "socket.connect") as heard:
            found = environment.detect()
        case.expect(isinstance(found, bool), "True or False", repr(found))
        case.expect(not heard.events, "a look at the environment", ", ".join(heard.events))
        case.expect(dict(os.environ) == before, "the environment as it was", "other variables")

    @requirement("ClusterEnvironment.priority")
    def test_its_declarations_are_of_their_types(self, case: Case) -> None:
        """``priority`` is a whole number, ``preemption_signals`` are signals."""
        made = self.create()
        case.expect(isinstance(made.priority, int), "an int as priority", repr(made.priority))
        signals = made.preemption_signals
        fits = isinstance(signals, tuple) and all(isinstance(one, signal.Signals) for one in signals)
        case.expect(fits, "a tuple of signals as preemption_signals", repr(signals))

    @requirement("ClusterEnvironment.detect")
    def test_it_detects_itself_in_a_process_that_was_started(self, case: Case) -> None:
        """With the scheduler's variables ``detect`` is True, and the processes are said to exist."""
        for environment, task in self._processes(case):
            case.expect_equal(type(environment).detect(), True, f"detect() in {_told(task)}")
            case.expect_equal(environment.creates_processes_externally, True, "creates_processes_externally")

    @requirement("ClusterEnvironment.global_rank")
    def test_the_ranks_are_those_of_the_processes(self, case: Case) -> None:
        """Each process is told its global, local and node rank and the world size."""
        for environment, task in self._processes(case):
            environment.validate_settings(task.local_size, task.num_nodes)  # as the selection asks before anything else
            found = (
                environment.global_rank(),
                environment.local_rank(),
                environment.node_rank(),
                environment.world_size(),
            )
            case.expect_equal(found, task[:4], f"global, local and node rank and world size in {_told(task)}")
            size = environment.local_world_size()
            case.expect(size in (None, task.local_size), f"local_world_size() {task.local_size}, or None", size)

    @requirement("ClusterEnvironment.main_address")
    def test_every_process_is_told_the_same_meeting_point(self, case: Case) -> None:
        """Address and port are the same in every process of a run, and each time that they are asked for."""
        met: dict[int, set[tuple[str, int]]] = {}
        for environment, task in self._processes(case):
            for _ in range(2):
                met.setdefault(task.num_nodes, set()).add((environment.main_address, environment.main_port))
        for points in met.values():
            case.expect(len(points) == 1, "one address and port for all processes", sorted(points))
            address, port = next(iter(points))
            case.expect(isinstance(address, str) and address, "an address", repr(address))
            case.expect(isinstance(port, int) and 0 < port < 65536, "a port between 1 and 65535", repr(port))

    @requirement("ClusterEnvironment.validate_settings")
    def test_it_accepts_what_was_started_and_refuses_anything_else(self, case: Case) -> None:
        """``validate_settings`` takes the devices and nodes that exist; another number is a SelectionError."""
        for environment, task in self._processes(case):
            devices, nodes = task.local_size, task.num_nodes
            error = error_or_none(lambda: environment.validate_settings(devices, nodes))  # noqa: B023
            case.expect(error is None, f"{devices} device(s) on {nodes} node(s) in {_told(task)} accepted", repr(error))
            case.expect_error(
                SelectionError,
                lambda: environment.validate_settings(devices + 1, nodes),  # noqa: B023
                f"for {devices + 1} device(s) on {nodes} node(s) in {_told(task)}",
            )

    @requirement("ClusterEnvironment.set_global_rank")
    def test_launchers_cannot_change_ranks_that_exist(self, case: Case) -> None:
        """Where the processes exist, ``set_world_size`` and ``set_global_rank`` raise nothing and change nothing."""
        for environment, task in self._processes(case):
            environment.validate_settings(task.local_size, task.num_nodes)
            environment.set_world_size(task.world_size + 3)
            environment.set_global_rank(task.global_rank + 1)
            found = (environment.global_rank(), environment.world_size())
            case.expect_equal(found, (task.global_rank, task.world_size), "global rank and world size, as started")

    @requirement("ClusterEnvironment.teardown")
    def test_teardown_gives_everything_back(self, case: Case) -> None:
        """After ``bind`` and ``teardown`` signal handlers, variables and the exception hook are what they were."""
        before: Any = None
        for environment, task in self._processes(case):
            before = _taken()
            environment.bind(_selection(environment, task))
            environment.teardown()
            after = _taken()
            changed = [name for name, value in after.items() if before[name] != value]
            case.expect(not changed, "signal handlers, variables and the exception hook as before", changed)

    def _processes(self, case: Case) -> Iterator[tuple[Any, Task]]:
        """An environment in each process of each run, with its variables set."""
        for nodes, local_size in self.layouts:
            for rank in range(nodes * local_size):
                node, local = divmod(rank, local_size)
                task = Task(rank, local, node, nodes * local_size, local_size, nodes, "127.0.0.1", 29611)
                variables = self.variables(task)
                if variables is None:
                    case.not_claimed("the suite has no variables(): its package can bring a suite that has")
                self._forget_variables()
                os.environ.update(variables)
                yield self.create(), task
                for name in variables:
                    os.environ.pop(name, None)

    def _forget_variables(self) -> None:
        for name in self.variables(Task(0, 0, 0, 2, 2, 1, "127.0.0.1", 29611)) or ():
            os.environ.pop(name, None)


def _selection(environment: Any, task: Task) -> Any:
    return SimpleNamespace(environment=environment, devices=(None,) * task.local_size, num_nodes=task.num_nodes)


def _taken() -> dict[str, Any]:
    """What an environment may take, by name."""
    handlers = {
        f"handler of {one.name}": signal.getsignal(one)
        for one in signal.valid_signals()
        if isinstance(one, signal.Signals)
    }
    variables = dict(os.environ)
    return {"sys.excepthook": sys.excepthook, "variables": variables, **handlers}


def _told(task: Task) -> str:
    return f"process {task.global_rank} of {task.world_size} on {task.num_nodes} node(s)"
