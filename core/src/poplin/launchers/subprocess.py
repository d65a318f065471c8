"""The launcher that runs this script again for each of the other ranks of the node."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from poplin.environments import place as places
from poplin.environments.place import Place
from poplin.errors import LaunchError
from poplin.launchers import layout, processes
from poplin.launchers.address import host_store
from poplin.launchers.command import script_command
from poplin.launchers.failure import Failure, is_consequence, of_exception
from poplin.launchers.host import Host, Member
from poplin.launchers.launcher import Launcher
from poplin.utilities import final, unwinding
from poplin.utilities.environ import EnvironmentVariables
from poplin.utilities.excepthook import ExceptionHook

if TYPE_CHECKING:
    from poplin.selection import Selection

#: How long this rank's own error, if it may be a consequence of another rank's, waits for that rank's word, in seconds.
_SETTLE_SECONDS = 2.5
#: How often this rank, at the end of the script, asks the others where they are, in seconds.
_ASK_SECONDS = 1.0


class SubprocessLauncher(Launcher):
    """This process becomes the node's first rank, and the script is run again for each of the others.

    The others live as long as the script does: a later Fabric of as many processes is one of the same group.

    Args:
        grace: seconds between SIGTERM and SIGKILL for ranks that must end because another one failed; None takes
            ``POPLIN_GRACE``, or 10.
    """

    needs_function = False

    def __init__(self, grace: float | None = None) -> None:
        self.grace = grace
        self._variables = EnvironmentVariables()
        self._threads: int | None = None
        self._joined: _Group | None = None

    @property
    def is_interactive_compatible(self) -> bool:
        """No: there is no script to run again."""
        return False

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Start the other ranks of this node, unless they exist, and run ``function(*args, **kwargs)`` in this process.

        Returns:
            This process's own result.

        Raises:
            LaunchError: the script can't be run again (an interactive session), or a process can't be started.
            WorkerError: another rank was killed, or ended without a word.
            BaseException: the first failing rank's own exception.
        """
        selection = self.selection
        assert selection is not None
        if selection.environment.creates_processes_externally:
            layout.note(selection, "this process", "the processes exist already, so none is started")
            return function(*args, **kwargs)
        self._become_first_rank(selection)
        group = self._joined  # teardown may come before the exception is here
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            first = None if group is None else group.explain(error)
            if first is None:
                raise
            raise first from first.__cause__

    def teardown(self) -> None:
        """Give back environment variables, signals and threads. The other ranks go on, as this one, with the script."""
        self._variables.restore()
        if self._threads is not None:
            import torch

            torch.set_num_threads(self._threads)
            self._threads = None
        if self._joined is not None:
            self._joined.leave()
            self._joined = None

    def kill(self, signum: int) -> None:
        """Send ``signum`` to the other ranks of this node."""
        if (group := _group_here()) is not None:
            for member in group.host.alive:
                processes.send(member.pid, signum)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_variables": EnvironmentVariables(),
            "_threads": None,
            "_joined": None,
        }

    # --- this process

    def _become_first_rank(self, selection: Selection) -> None:
        size = len(selection.devices)
        if size * selection.num_nodes == 1 and places.current() is not None:
            # One process of its own, in the middle of a launch: its ranks are not those of the launch.
            self._variables.set(layout.first_place(selection, None).variables())
            return
        group = _group_here()
        if group is None:
            first, store = _first_place(selection)
            count, variables = layout.threads(selection)
            wanted = layout.accelerator_variables(selection)
            self._variables.set({**first.variables(), **wanted})
            if size > 1:
                group = _start_group(selection, first, store, variables | wanted, self.grace)
                group.wanted = wanted
            layout.note(selection, f"subprocess: {size} process(es)", f"they meet at {first.address}:{first.port}")
        else:
            self._variables.set({**group.first.variables(), **group.wanted})
            count = None
            layout.note(
                selection, f"subprocess: {size} process(es)", "those of the earlier launch, which run this script"
            )
        if group is not None:
            self._joined = group
            group.join()
        if count is not None:
            import torch

            self._threads = torch.get_num_threads()
            torch.set_num_threads(count)


class _Group:
    """The processes that run this script, from the first launch to the end of the script. One in a process."""

    def __init__(self, host: Host, first: Place, store: Any) -> None:
        self.host = host
        self.first = first
        self.wanted: dict[str, str | None] = {}  # by the accelerator, in the environment of each
        self.pid = os.getpid()
        self._store = store  # holds the port
        self._users = 0
        self._unwinds = False
        self._finishing = False
        self._failed_here = False
        self._noted: list[str] = []
        self._hook: ExceptionHook | None = None
        self._killer: threading.Timer | None = None
        host._on_failure = self._on_failure
        threading.Thread(target=self._watch, name="poplin-host", daemon=True).start()
        final.at_the_end(self._finish)

    # --- a Fabric's use of it

    def join(self) -> None:
        """A Fabric uses it from now on: SIGTERM unwinds, and an exception that ends the script ends the others."""
        self._users += 1
        if self._users == 1:
            self._unwinds = unwinding.install()
            self._hook = self._hook or ExceptionHook(self._on_exception)

    def leave(self) -> None:
        """A Fabric is closed."""
        self._users -= 1
        if self._users == 0:
            unwinding.restore()
            self._unwinds = False
            if (
                self._hook is not None and sys.exc_info()[1] is None
            ):  # an exception on its way out comes to the hook yet
                self._hook.remove()
                self._hook = None

    # --- failures

    def explain(self, error: BaseException) -> BaseException | None:
        """``error`` came out of this rank's function: end the others.

        Returns:
            The error of another rank that failed first, to be raised instead; None if there is none.
        """
        if isinstance(error, SystemExit) and not isinstance(error, unwinding.Terminated) and error.code in (None, 0):
            return None
        first = self._settle(error)
        self._end_others(error if first is None else None)
        self._calm()
        told = error if first is None else first.error(self.first.world_size)
        for note in self._new_notes():
            told.add_note(note)
        if first is None:
            return None
        told.add_note(f"(raised in rank {first.rank} of {self.first.world_size})")
        return told

    def _settle(self, error: BaseException) -> Failure | None:
        """The failure of another rank that ``error`` follows from, if it does."""
        unwinding.note_unwinding()
        deadline = time.monotonic() + (_SETTLE_SECONDS if is_consequence(error) else 0.0)
        while self.host.first is None and time.monotonic() < deadline and self.host.alive:
            time.sleep(0.05)
        return self.host.first

    def _end_others(self, error: BaseException | None) -> None:
        grace: float | None = None
        while True:
            try:
                self._failed_here = True
                self.host.abort(None if error is None else of_exception(error, self.first.global_rank), grace)
                while not self.host.ended:
                    time.sleep(0.02)
                return
            except KeyboardInterrupt:
                if grace == 0:
                    raise
                grace = 0.0

    def _on_failure(self, failure: Failure) -> None:
        """Called once, by whoever finds out which rank failed first."""
        if self._failed_here:
            return
        print(f"poplin: {failure.report(self.first.world_size)}", file=sys.stderr, flush=True)
        if not self._users or self._finishing:
            return  # no Fabric of this process waits for the others
        if self._unwinds:
            unwinding.abort()
        self._killer = threading.Timer(self.host.grace, self._give_up)
        self._killer.daemon = True
        self._killer.start()

    def _give_up(self) -> None:
        """This rank did not unwind in time."""
        from poplin.launchers.failure import where_is

        stack, collective = where_is(_main_thread(), at_the_end=True)
        sat = f"sat in the collective {collective}" if collective else "did not end"
        note = f"poplin: rank {self.first.global_rank} {sat} to the end of the grace period of {self.host.grace:g} s."
        where = [] if collective else [f"It is here:\n{stack.rstrip()}"]
        print(note, *where, *self._new_notes(), sep="\n", file=sys.stderr, flush=True)
        self._sweep()
        os._exit(1)

    def _sweep(self) -> None:
        """What this process has started, and did not end itself, goes with it."""
        for pid in processes.descendants(os.getpid()):
            processes.send(pid, signal.SIGKILL)

    def _calm(self) -> None:
        if self._killer is not None:
            self._killer.cancel()
            self._killer = None

    def _on_exception(self, error: BaseException, hand_on: Callable[[], None]) -> None:
        """An exception ends this script: another rank's failure stands first, and the others end too."""
        if self.host.aborted_at is None:
            self._settle(error)
        hand_on()
        self._failed_here = True
        self.host.abort(of_exception(error, self.first.global_rank))
        final.let_go()  # ranks that wait for this one in a collective see that it has left
        self._end_others(error)
        self._tell_notes()

    def _new_notes(self) -> list[str]:
        """What there is to say about ranks that did not end by themselves, and hasn't been said."""
        new = [note for note in self.host.notes() if note not in self._noted]
        self._noted += new
        return new

    def _tell_notes(self) -> None:
        for note in self._new_notes():
            print(f"poplin: {note}", file=sys.stderr, flush=True)

    # --- the end of the script

    def _watch(self) -> None:
        while not self.host.ended:
            self.host.step()

    def _finish(self) -> None:
        """The script has ended in this process: wait for the others, which may have a little left to do."""
        if os.getpid() != self.pid:
            return
        self._finishing = True
        self._calm()
        try:
            if unwinding.was_told_to_end():
                self._end_others(None)
            self._wait_for_others()
        except BaseException as error:
            self._end_others(None)
            if not isinstance(error, KeyboardInterrupt):
                raise
        self._tell_notes()
        final.forget(self._finish)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        if self.host.aborted_at is not None:
            self._sweep()
        if self.host.first is not None and not self._failed_here:
            os._exit(1)  # the script was fine in this process, and not in another: the run has failed all the same

    def _wait_for_others(self) -> None:
        begun, asked_at, told = time.monotonic(), 0.0, False
        stuck_since: float | None = None
        while not self.host.ended:
            time.sleep(0.02)
            now = time.monotonic()
            if self.host.aborted_at is not None or now - asked_at < _ASK_SECONDS:
                continue
            if asked_at and not _all_in_collectives(self.host.alive):
                stuck_since = None
            elif asked_at and stuck_since is None:
                stuck_since = now
            if stuck_since is not None and now - stuck_since > self.host.grace / 2:
                self._end_stuck(self.host.alive)
                continue
            if not told and now - begun > self.host.grace:
                told = True
                names = ", ".join(str(member.rank) for member in self.host.alive)
                print(
                    f"poplin: rank {self.first.global_rank} is done and waits for rank(s) {names} ...", file=sys.stderr
                )
            asked_at = now
            for member in self.host.alive:
                member.tell("where")

    def _end_stuck(self, stuck: list[Member]) -> None:
        """All others wait in collectives, and this rank has ended: none of them will ever be complete."""
        for member in stuck:
            collective = member.where[1] if member.where is not None else None
            ended = f"rank {self.first.global_rank} has ended. It is ended too."
            print(f"poplin: rank {member.rank} waits in the collective {collective}, and {ended}", file=sys.stderr)
        self.host.abort(Failure(stuck[0].rank, "was ended in a collective that another rank never came to"))


def _all_in_collectives(members: list[Member]) -> bool:
    return bool(members) and all(member.where is not None and member.where[1] for member in members)


_group: _Group | None = None


def _group_here() -> _Group | None:
    return _group if _group is not None and _group.pid == os.getpid() else None


def _first_place(selection: Selection) -> tuple[Place, Any]:
    """This process's place, and the store that it hosts, which holds the port."""
    if not layout.needs_port(selection):
        return layout.first_place(selection, None), None
    if len(selection.devices) == 1:
        # One process: the environment object hosts what it needs.
        return layout.first_place(selection, None), None
    store, port = host_store()
    return layout.first_place(selection, port), store


def _start_group(
    selection: Selection, first: Place, store: Any, variables: dict[str, str | None], grace: float | None
) -> _Group:
    global _group
    command = script_command()
    if threading.current_thread() is threading.main_thread():
        command = processes.exec_with_parent(command)
    mark = (layout.MARK_VARIABLE, uuid.uuid4().hex)
    members: list[Member] = []
    host = Host(members, first.world_size, unwinding.grace_seconds() if grace is None else grace, mark)
    try:
        for local_rank in range(1, first.local_size):
            host.members.append(_start_one(command, first._replace(local_rank=local_rank), variables, mark))
    except BaseException:
        host.abort(grace=0)
        while not host.ended:
            host.step()
        raise
    places.take(first, launching=True)
    _group = _Group(host, first, store)
    return _group


def _start_one(command: list[str], place: Place, variables: dict[str, str | None], mark: tuple[str, str]) -> Member:
    ours, theirs = multiprocessing.Pipe(duplex=True)
    settings = {**place.variables(os.getpid(), theirs.fileno()), **variables, mark[0]: mark[1]}
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, **{name: value for name, value in settings.items() if value is not None}},
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,  # of the ranks of a node only the first can read it
        )
    except OSError as error:
        ours.close()
        raise LaunchError(f"Rank {place.global_rank} could not be started by {command}: {error}") from error
    finally:
        theirs.close()
    return Member(place.global_rank, process.pid, process.poll, ours, must_return=False)


def _main_thread() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident
