"""What runs in a process that the multiprocessing launcher started."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from poplin.environments import place as places
from poplin.environments.place import Place
from poplin.errors import LaunchError
from poplin.launchers import guest as guests
from poplin.launchers.guest import Guest
from poplin.launchers.payload import Call, Payload
from poplin.utilities import unwinding


@dataclass
class Orders:
    """What a worker is started with.

    Attributes:
        place: where it stands.
        launcher_pid: of the launching process.
        connection: to it.
        others: connections that a forked worker has inherited, and must not keep open.
        held: the listening socket that becomes the store of the process group, for global rank 0.
        registrations: from ``poplin.registry.runtime_table()``, pickled; None where they are inherited.
        call: the function and its arguments.
        threads: for torch, or None to leave it alone.
        variables: more environment variables.
        is_child: whether the launching process is its parent.
        start_method: by which the launching process starts processes of its own, dataloader workers for instance.
    """

    place: Place
    launcher_pid: int
    connection: Connection
    others: Sequence[Connection]
    held: socket.socket | None
    registrations: bytes | None
    call: Payload | Call
    threads: int | None
    variables: dict[str, str | None]
    is_child: bool
    start_method: str | None


def work(orders: Orders) -> None:
    """Take the place in the run, call the function, and say what came of it."""
    for connection in orders.others:
        connection.close()
    if orders.is_child and os.getppid() != orders.launcher_pid:
        os._exit(1)  # the launching process died while this one was being made
    # A spawned process would spawn its dataloader workers too, each with an import of torch.
    multiprocessing.set_start_method(orders.start_method, force=True)
    places.take(orders.place)
    for name, value in orders.variables.items():
        if value is not None:
            os.environ[name] = value
    guest = guests.become(orders.connection, orders.place)
    unwinding.install()
    try:
        result = _run(orders)
    except BaseException as error:
        guest.tell_exception(error)
        guest.sweep()
    else:
        _return(guest, result)
    guest.leave()
    _flush()


def _run(orders: Orders) -> bytes | None:
    if orders.registrations is not None:
        # Ahead of all else: what comes next may name what was registered.
        from poplin.registry import install_runtime_table

        install_runtime_table(pickle.loads(orders.registrations))
    store = _host_store(orders.held)
    if orders.threads is not None:
        import torch

        torch.set_num_threads(orders.threads)
    function, args, kwargs = orders.call.load() if isinstance(orders.call, Payload) else orders.call
    result = function(*args, **kwargs)
    del store
    return _pickled(result) if orders.place.global_rank == 0 else None


def _host_store(held: socket.socket | None) -> Any:
    if held is None:
        return None
    from poplin.launchers.address import take_over

    return take_over(held)


def _pickled(result: Any) -> bytes:
    try:
        return pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise LaunchError(
            f"The function that launch() ran returned a {type(result).__name__}, which can't be sent back from the "
            f"process of rank 0: {type(error).__name__}: {error}. Return plain values, tensors or state dicts."
        ) from error


def _return(guest: Guest, result: bytes | None) -> None:
    unwinding.note_unwinding()  # from here on the process only ends: a signal has nothing to unwind
    guest.tell("returned", result)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
