"""The launcher that runs a function in processes that it spawns or forks."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from poplin.environments.place import Place
from poplin.errors import ArgumentValueError, LaunchError, WorkerError
from poplin.launchers import layout
from poplin.launchers.address import HeldPort
from poplin.launchers.host import Host, Member
from poplin.launchers.launcher import Launcher
from poplin.launchers.payload import Call, Payload, unpicklable
from poplin.launchers.worker import Orders, work
from poplin.utilities import unwinding
from poplin.utilities.environ import environment_variables

START_METHODS = ("spawn", "fork", "forkserver")


class MultiProcessingLauncher(Launcher):
    """Runs a function in new processes of this node, one for each device, and returns rank 0's result.

    ``"fork"`` works in notebooks and needs no pickling, ``"spawn"`` and ``"forkserver"`` start afresh: what they are
    given is pickled, and a script needs ``if __name__ == "__main__":``.

    Args:
        start_method: ``"spawn"``, ``"fork"`` or ``"forkserver"``.
        grace: seconds between SIGTERM and SIGKILL for ranks that must end because another one failed; None takes
            ``POPLIN_GRACE``, or 10.

    Raises:
        ArgumentValueError: no such start method here.
    """

    needs_function = True

    def __init__(self, start_method: str = "spawn", grace: float | None = None) -> None:
        available = multiprocessing.get_all_start_methods()
        if start_method not in available:
            raise ArgumentValueError(
                f"start_method={start_method!r}: this system can start processes by {', '.join(available)}."
            )
        self.start_method = start_method
        self.grace = grace

    @property
    def is_interactive_compatible(self) -> bool:
        """Whether it is ``"fork"``: the others can't find functions that were typed in."""
        return self.start_method == "fork"

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``function(*args, **kwargs)`` in one new process for each device of this node.

        Where the processes exist already (torchrun, a scheduler, an earlier launch), it is called in this one.

        Returns:
            Rank 0's result, or this process's own where the processes existed. On nodes other than the first: None.

        Raises:
            LaunchError: the processes can't be started, or what they need can't be pickled; it says what.
            WorkerError: a rank was killed, or ended without a word.
            BaseException: the first failing rank's own exception; its traceback is in the chain.
        """
        selection = self.selection
        assert selection is not None
        if selection.environment.creates_processes_externally:
            layout.note(selection, "this process", "the processes exist already, so none is started")
            return function(*args, **kwargs)
        if self.start_method == "fork":
            _check_fork(selection.accelerator)
        return _Launch(self, function, args, kwargs).run()


class _Launch:
    """One launch, from the first process to the result."""

    def __init__(
        self, launcher: MultiProcessingLauncher, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> None:
        assert launcher.selection is not None
        self.selection = launcher.selection
        self.method = launcher.start_method
        self.grace = unwinding.grace_seconds() if launcher.grace is None else launcher.grace
        self.call: Call = (function, args, kwargs)
        self.context: Any = multiprocessing.get_context(self.method)
        self.mark = (layout.MARK_VARIABLE, uuid.uuid4().hex)
        self.processes: list[Any] = []
        self.members: list[Member] = []

    def run(self) -> Any:
        size = len(self.selection.devices)
        held = HeldPort() if layout.needs_port(self.selection) else None
        try:
            first = layout.first_place(self.selection, held.port if held is not None else None)
            layout.note(
                self.selection, f"{self.method}: {size} process(es)", f"they meet at {first.address}:{first.port}"
            )
            host = Host(self.members, first.world_size, self.grace, self.mark)
            try:
                self._start(first, held, host)
                if held is not None:
                    held.close()
                self._watch(host)
            except BaseException:
                self._end(host)
                raise
            finally:
                self._clean()
        finally:
            if held is not None:
                held.close()
        return self._outcome(host)

    # --- starting

    def _start(self, first: Place, held: HeldPort | None, host: Host) -> None:
        forked = self.method == "fork"
        registrations = None if forked else _registrations()
        call = self.call if forked else Payload(self.call)
        threads, variables = layout.threads(self.selection)
        variables |= layout.accelerator_variables(self.selection)
        kept: list[Connection] = []
        for local_rank in range(first.local_size):
            place = first._replace(local_rank=local_rank)
            ours, theirs = multiprocessing.Pipe(duplex=True)
            kept.append(ours)
            place_variables = {**place.variables(), **variables, self.mark[0]: self.mark[1]}
            orders = Orders(
                place=place,
                launcher_pid=os.getpid(),
                connection=theirs,
                others=list(kept) if forked else (),
                held=held.socket if held is not None and place.global_rank == 0 else None,
                registrations=registrations,
                call=call,
                threads=layout.forked_threads(threads) if forked else None,
                variables=place_variables,
                is_child=self.method != "forkserver",
                start_method=multiprocessing.get_start_method(allow_none=True),
            )
            process = self.context.Process(target=work, args=(orders,), name=f"poplin-rank-{place.global_rank}")
            with environment_variables(place_variables):
                self._start_one(process)
            theirs.close()
            self.processes.append(process)
            exit_code = functools.partial(getattr, process, "exitcode")
            host.members.append(Member(place.global_rank, process.pid, exit_code, ours, must_return=True))

    def _start_one(self, process: Any) -> None:
        try:
            process.start()
        except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
            raise unpicklable(self.call, error) from error
        except RuntimeError as error:
            if "bootstrapping phase" not in str(error):
                raise unpicklable(self.call, error) from error
            raise LaunchError(
                "launch() was called while a worker of an earlier launch was importing this script. Put the code that "
                'launches under `if __name__ == "__main__":`, so that it does not run when the script is imported.'
            ) from error
        except AssertionError as error:
            raise LaunchError(
                f"launch() was called in a process that may have no children ({error}), a dataloader worker for "
                "instance. Call it in the main process."
            ) from error
        except (OSError, EOFError, ValueError) as error:
            raise LaunchError(f"A worker process could not be started: {type(error).__name__}: {error}.") from error

    # --- watching

    def _watch(self, host: Host) -> None:
        with _Notices() as notices:
            finished_at: float | None = None
            while not host.ended:
                host.step()
                if notices.signum is not None and not notices.handled:
                    notices.handled = True
                    if not host.notify(notices.signum):
                        host.abort()
                        notices.ends_us = True
                elif notices.count > 1 and not notices.ends_us:
                    host.abort()
                    notices.ends_us = True
                finished_at = _hurry(host, finished_at)

    def _end(self, host: Host) -> None:
        """Something ends this process: end the workers first. A second Ctrl-C kills them."""
        grace: float | None = None
        while True:
            try:
                host.abort(grace=grace)
                while not host.ended:
                    host.step()
                return
            except BaseException:
                if grace == 0:
                    raise
                grace = 0.0

    def _clean(self) -> None:
        for process in self.processes:
            if process.exitcode is not None:
                process.join()
        for member in self.members:
            if member.connection is not None:
                member.connection.close()

    # --- the outcome

    def _outcome(self, host: Host) -> Any:
        if host.first is not None:
            error = host.first.error(host.world_size)
            for note in host.notes():
                error.add_note(note)
            if isinstance(error.__cause__, WorkerError):
                error.add_note(f"(raised in rank {host.first.rank} of {host.world_size})")
            raise error
        exits = [member.failure for member in host.members if member.failure is not None]
        if exits:  # sys.exit() with a good code, and no rank failed
            raise exits[0].error(host.world_size)
        first = host.members[0]
        if first.result is None:
            return None
        try:
            return pickle.loads(first.result)
        except Exception as error:
            raise LaunchError(
                f"What the function returned in rank 0 can't be rebuilt here: {type(error).__name__}: {error}. Return "
                "plain values, tensors or state dicts."
            ) from error


class _Notices:
    """Signals that come to the launching process while its workers run, and are meant for the run.

    Whoever has not armed ``should_stop`` is ended by SIGTERM, and so is this process when its workers have ended.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.count = 0
        self.handled = False
        self.ends_us = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Notices:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGUSR1):
                previous = signal.getsignal(signum)
                if previous is not None and previous is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, previous in self._previous.items():
            if signal.getsignal(signum) == self._receive:
                signal.signal(signum, previous)
        if self.ends_us and self.signum is not None:
            os.kill(os.getpid(), self.signum)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        self.signum = signum


def _registrations() -> bytes:
    from poplin.registry import runtime_table

    table = runtime_table()
    try:
        return pickle.dumps(table)
    except Exception as error:
        raise LaunchError(
            f"Something that was registered at run time can't be sent to the worker processes: {type(error).__name__}: "
            f"{error}. Register a class or a function at the top level of a module."
        ) from error


def _hurry(host: Host, finished_at: float | None) -> float | None:
    """Workers that have returned and do not end (a thread of the user's, say) get the grace, and are ended then."""
    if host.aborted_at is not None or not all(member.returned or member.failure for member in host.members):
        return finished_at
    if finished_at is None:
        return time.monotonic()
    if time.monotonic() - finished_at > host.grace:
        host.abort()
    return finished_at


def _check_fork(accelerator: Any) -> None:
    """Refuse to fork a process whose accelerator is in use: its context does not survive in the child.

    Raises:
        LaunchError: it is in use.
    """
    import torch

    device_type = getattr(accelerator, "device_type", "cpu")
    if device_type == "cpu":
        return
    try:
        is_initialized = getattr(torch.get_device_module(device_type), "is_initialized", None)
    except (RuntimeError, AttributeError):
        return
    if callable(is_initialized) and is_initialized():
        raise LaunchError(
            f"This process has used a {device_type} device already, and its context does not survive a fork. Touch no "
            "device before launch() (in a notebook: restart the kernel, and move tensors to the device only inside the "
            "launched function), or use a launcher that starts afresh ('spawn')."
        )
