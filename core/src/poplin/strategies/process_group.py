"""The process group of a run: one that exists is adopted, one that we make is counted over those who use it.

A group that somebody else made is never destroyed here. One of ours is destroyed when its last user lets it go,
and at the end of the process at the latest.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Default arguments in there hold, for ever, the group that exists at the first import (building a replica imports it).
# The group would outlive its destruction, and the other ranks wait for it; so it is imported before any exists.
import torch.distributed.nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed import rendezvous as meet  # type: ignore[attr-defined]

from poplin.errors import ArgumentTypeError, ArgumentValueError, ContradictionError, LaunchError, UsageError
from poplin.strategies.recorder import Recorder
from poplin.utilities import final

#: How long connecting and collectives may take where nobody says otherwise: torch's own default for the CPU.
DEFAULT_TIMEOUT = timedelta(minutes=30)
#: Seconds that a process which has had a group waits at its exit, for the threads of those that somebody still holds.
REST = 0.05


@dataclass(frozen=True)
class Rendezvous:
    """Who this process is, and where it meets the others.

    Attributes:
        rank: of this process among all.
        world_size: how many processes there are.
        address: host name or address of rank 0's node.
        port: on that node.
    """

    rank: int
    world_size: int
    address: str
    port: int


@dataclass
class SharedGroup:
    """The default process group of this process, as those who use it see it.

    Attributes:
        group: torch's default group; None once it was let go.
        owned: whether we made it, and so destroy it.
        recorder: leaves each rank's last collective in the store that all ranks share.
        timeout: of its collectives; None where somebody else chose it.
        backends: device type → name of the backend that serves its tensors.
        users: how many use it now.
        firsts: how often one rank went first; a part of the key in the store each time.
        views: what is known of groups, by the id of torch's handle.
    """

    group: dist.ProcessGroup | None
    owned: bool
    recorder: Recorder
    timeout: timedelta | None
    backends: Mapping[str, str]
    pid: int = field(default_factory=os.getpid)
    users: int = 0
    firsts: int = 0
    views: dict[int, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it still is the default group of this very process."""
        return self.group is not None and dist.group.WORLD is self.group and self.pid == os.getpid()

    def let_go(self) -> None:
        """Destroy the group if it is ours, and hold no handle any more.

        A handle that lives until the end of the process takes the group's threads down with the interpreter, and torch
        then sometimes aborts.
        """
        if self.owned and self.alive:
            dist.destroy_process_group()
        self.group = None
        self.views.clear()


_lock = threading.RLock()
_shared: SharedGroup | None = None
#: How many groups were made at each meeting point, and how many were adopted: part of a group's keys in the store, so
#: that a later one never reads them. (Some stores outlive groups, torchrun's own for one.) Counted by meeting point,
#: because only the ranks that meet there have the same past.
_made: collections.Counter[tuple[str, int]] = collections.Counter()
_adopted = 0
#: The store of the latest meeting point. It outlives the group: a rank that is quicker to make the next one must not
#: meet the dying server of the last. torch's own groups at the same address share the server.
_base_store: tuple[tuple[str, int, int, int], Store] | None = None
#: Stores that a forked process has from its parent. To let go of one ends the process: its threads are not here.
_inherited: list[Store] = []


def as_timeout(timeout: timedelta | float | None) -> timedelta | None:
    """A timeout as a timedelta.

    Raises:
        ArgumentTypeError: neither a timedelta nor a number of seconds.
        ArgumentValueError: not positive.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (timedelta, int, float)):
        raise ArgumentTypeError(f"timeout={timeout!r}: give a datetime.timedelta or a number of seconds.")
    delta = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if delta <= timedelta(0):
        raise ArgumentValueError(f"timeout={timeout!r}: a process group needs a timeout above zero.")
    return delta


def backend_spec(device_type: str, backend: str | None, cpu_backend: str) -> str:
    """What ``init_process_group`` is asked for: always with a CPU side.

    Args:
        device_type: torch's type of the run's devices.
        backend: name of the backend for them, or a whole specification (``"cpu:a,xyz:b"``); None if there is none.
        cpu_backend: name of the backend for CPU tensors.
    """
    if backend is not None and ":" in backend:
        return backend
    if device_type == "cpu":
        return f"cpu:{backend or cpu_backend}"
    if backend is None:
        return f"cpu:{cpu_backend}"
    return f"cpu:{cpu_backend},{device_type}:{backend}"


def parse_spec(spec: str) -> dict[str, str]:
    """Device type → backend name, of ``"cpu:a,xyz:b"``. A bare name serves any device type: key ``"*"``."""
    backends = {}
    for part in spec.split(","):
        device_type, found, name = part.partition(":")
        backends[device_type.strip() if found else "*"] = name.strip() if found else device_type.strip()
    return backends


def acquire(
    spec: str,
    rendezvous: Rendezvous,
    *,
    explicit_backend: str | None = None,
    timeout: timedelta | None = None,
    device: torch.device | None = None,
) -> SharedGroup:
    """Use the process group: the one that exists, or a new one. Each call needs one :func:`release`.

    Args:
        spec: from :func:`backend_spec`.
        rendezvous: who this process is.
        explicit_backend: the backend that the user asked for, if one was; an existing group must have it.
        timeout: of collectives and of connecting; None takes torch's default.
        device: of this process; backends that bind to one device are told.

    Raises:
        ContradictionError: a group exists, and its rank, world size or backend is another.
        ArgumentValueError: torch has no such backend here.
        LaunchError: no group could be made.
    """
    global _shared
    if not dist.is_available():
        raise LaunchError(
            "This build of torch has no torch.distributed, so several processes can't work together. Install a build "
            "that has it, or use one device."
        )
    with _lock:
        if not dist.is_initialized():
            _shared = _make(spec, rendezvous, timeout, device)
        else:
            if _shared is None or not _shared.alive:
                _shared = _adopt()
            _compare(_shared, rendezvous, explicit_backend, device)
        _shared.users += 1
        return _shared


def release(shared: SharedGroup) -> None:
    """Use the group no more. The last user of a group that we made destroys it."""
    global _shared
    with _lock:
        shared.users -= 1
        if shared.users > 0:
            return
        shared.recorder.leave()
        shared.let_go()
        if _shared is shared:
            _shared = None


def exists() -> bool:
    """Whether this process has a default process group."""
    return dist.is_available() and dist.is_initialized()


def _make(spec: str, rendezvous: Rendezvous, timeout: timedelta | None, device: torch.device | None) -> SharedGroup:
    point = (rendezvous.address, rendezvous.port)
    _made[point] += 1
    _require_backends(spec)
    try:
        base = _connect(rendezvous, timeout or DEFAULT_TIMEOUT)
        # torch refuses a device of a type that the group has no backend for
        served = parse_spec(spec).keys()
        bound = device is not None and device.type != "cpu" and not served.isdisjoint({device.type, "*"})
        options: dict[str, Any] = {"device_id": device} if bound else {}
        dist.init_process_group(
            spec,
            store=PrefixStore(f"poplin/group{_made[point]}", base),
            rank=rendezvous.rank,
            world_size=rendezvous.world_size,
            timeout=timeout or DEFAULT_TIMEOUT,
            **options,
        )
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget_names()
        raise LaunchError(
            f"Rank {rendezvous.rank} could not bring up the process group ({spec!r}, {rendezvous.world_size} "
            f"process(es) meeting at {rendezvous.address}:{rendezvous.port}): {_first_line(error)} Check that every "
            "rank was started, with the same address and port, and that nothing else uses the port."
        ) from error
    world = dist.group.WORLD
    assert world is not None
    return SharedGroup(
        world,
        owned=True,
        recorder=Recorder(PrefixStore(f"poplin/log{_made[point]}", base), rendezvous.rank),
        timeout=timeout or DEFAULT_TIMEOUT,
        backends=parse_spec(str(dist.get_backend_config())),
    )


def _require_backends(spec: str) -> None:
    missing = [name for name in parse_spec(spec).values() if not dist.is_backend_available(name)]
    if missing:
        known = [name for name in dist.Backend.backend_list if name != "undefined" and dist.is_backend_available(name)]
        raise ArgumentValueError(
            f"The process group is to be {spec!r}, and torch has no backend {missing[0]!r} here; it has "
            f"{', '.join(sorted(known))}. Name one of these (process_group_backend=...), or import the package that "
            "registers it before (torch.distributed.Backend.register_backend)."
        )


def _forget_names() -> None:
    """Let torch count its groups from the start, as it does when it destroys the default one.

    It names them by number; a rank that failed early has counted fewer than the others, and would not meet them again.
    """
    world: Any = getattr(dist.distributed_c10d, "_world", None)  # torch has no public way to it
    if hasattr(world, "group_count"):
        world.group_count = 0


def _connect(rendezvous: Rendezvous, timeout: timedelta) -> Store:
    """The store at the meeting point: rank 0 hosts it, unless the launcher does (as torchrun's agent says it does)."""
    global _base_store
    key = (rendezvous.address, rendezvous.port, rendezvous.rank, os.getpid())
    if _base_store is None or _base_store[0] != key:
        if _base_store is not None and _base_store[0][-1] != os.getpid():
            _inherited.append(_base_store[1])
        _base_store = None  # the old server goes before the new one comes
        host = f"[{rendezvous.address}]" if ":" in rendezvous.address else rendezvous.address
        url = f"tcp://{host}:{rendezvous.port}?rank={rendezvous.rank}&world_size={rendezvous.world_size}"
        store, _, _ = next(iter(meet(url, timeout=timeout)))
        # torchrun's store outlives a restart of the ranks: those of the attempt before must not be met.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        _base_store = (key, PrefixStore(f"poplin/attempt{attempt}", store))
    store = _base_store[1]
    store.set_timeout(timeout)
    return store


def _adopt() -> SharedGroup:
    global _adopted
    _adopted += 1
    world = dist.group.WORLD
    assert world is not None
    get_store = getattr(dist.distributed_c10d, "_get_default_store", None)  # torch has no public way to it
    store = None if get_store is None else PrefixStore(f"poplin/adopted{_adopted}", get_store())
    return SharedGroup(
        world,
        owned=False,
        recorder=Recorder(store, dist.get_rank()),
        timeout=None,
        backends=parse_spec(str(dist.get_backend_config())),
    )


def _compare(
    shared: SharedGroup, rendezvous: Rendezvous, explicit_backend: str | None, device: torch.device | None
) -> None:
    here = (dist.get_rank(), dist.get_world_size())
    if here != (rendezvous.rank, rendezvous.world_size):
        raise ContradictionError(
            f"A process group exists already, in which this is rank {here[0]} of {here[1]}, and the run asked for is "
            f"rank {rendezvous.rank} of {rendezvous.world_size}. Ask for as many devices and nodes as the group has "
            "processes, or destroy it first (torch.distributed.destroy_process_group())."
        )
    if explicit_backend is None or device is None:
        return
    wanted = parse_spec(explicit_backend)
    name = wanted.get(device.type, wanted.get("*"))
    has = shared.backends.get(device.type, shared.backends.get("*"))
    if name is not None and has != name:
        raise ContradictionError(
            f"process_group_backend={explicit_backend!r} was asked for, and the process group that exists already "
            f"serves {device.type} with {has!r}. Leave process_group_backend out, or destroy that group first."
        )


def require(shared: SharedGroup | None, what: str) -> SharedGroup:
    """``shared``, if it can be used.

    Raises:
        UsageError: there is no process group yet, or no more.
    """
    if shared is None:
        raise UsageError(
            f"{what} needs the process group, and there is none: it comes with fabric.launch() (or the constructor, "
            "under the command line) and goes with fabric.close()."
        )
    if not shared.alive:
        raise UsageError(
            f"{what} needs the process group, and somebody has destroyed it "
            "(torch.distributed.destroy_process_group()) while it was in use. Call fabric.close() first."
        )
    return shared


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if line.endswith(".") else line + "."


def _destroy_at_exit() -> None:
    """Nobody closed the strategy: give the group back, as torch wants it.

    A group that somebody still holds (the mesh of a sharded model does) keeps its threads. One that has just ended a
    collective frees that collective's tensors, for which it needs the interpreter; if that is gone by then, Python ends
    the thread, and C++ the process: "terminate called without an active exception".
    """
    shared = _shared
    if shared is not None and shared.pid == os.getpid():
        shared.recorder.close()
        shared.let_go()
    if _made or _adopted:
        time.sleep(REST)


final.at_the_end(_destroy_at_exit)  # after what uses it has been closed
