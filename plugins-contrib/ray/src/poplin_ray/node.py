"""What runs on a node of the cluster: an actor that starts the node's processes, and what runs in each of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
from typing import Any, NamedTuple

from poplin.launchers import MultiProcessingLauncher
from poplin.utilities import import_library


class Orders(NamedTuple):
    """What an actor is told.

    Args:
        node_rank: of its node.
        meeting_point: address and port of the rendezvous; None where all processes are on this node.
        selection: the run, pickled.
        call: the function and its arguments, and what was registered at run time, pickled by value.
        grace: seconds between SIGTERM and SIGKILL.
    """

    node_rank: int
    meeting_point: tuple[str, int] | None
    selection: bytes
    call: bytes
    grace: float | None


class CarriedError(Exception):
    """An exception of a rank whose class was sent there by value, so that plain pickle can't bring it back."""

    def __init__(self, content: bytes, text: str) -> None:
        super().__init__(content, text)
        self.content, self.text = content, text

    def __str__(self) -> str:
        return self.text


class Node:
    """The actor of one node. Ray runs its methods in threads: :meth:`end` while :meth:`run` runs."""

    def meeting_point(self) -> tuple[str, int]:
        """An address of this node, and a port that is free now."""
        import ray

        with socket.create_server(("", 0)) as server:
            return ray.util.get_node_ip_address(), int(server.getsockname()[1])

    def run(self, orders: Orders) -> tuple[bool, bytes]:
        """Start the processes of this node, and wait for them.

        Returns:
            Whether all went well; with rank 0's result, or the error, pickled by value.
        """
        pack = import_library("ray.cloudpickle", "The launcher 'ray'").dumps
        try:
            if orders.meeting_point is not None:
                address, port = orders.meeting_point
                os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port), NODE_RANK=str(orders.node_rank))
            launcher = MultiProcessingLauncher("spawn", grace=orders.grace)
            launcher.bind(import_library("ray.cloudpickle", "The launcher 'ray'").loads(orders.selection))
            return True, launcher.launch(run_call, orders.call)
        except BaseException as error:
            return False, pack((error, error.__cause__, list(getattr(error, "__notes__", ()))))

    def end(self) -> None:
        """Tell the processes of this node to end; their ``finally`` blocks run."""
        for process in multiprocessing.active_children():
            if process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)


def run_call(content: bytes) -> bytes:
    """In a process of the run: register what the script has registered, and call its function.

    Returns:
        What the function returned, pickled by value.
    """
    from poplin.registry import install_runtime_table

    cloudpickle: Any = import_library("ray.cloudpickle", "The launcher 'ray'")
    registrations, call = cloudpickle.loads(content)
    install_runtime_table(cloudpickle.loads(registrations))
    function, args, kwargs = cloudpickle.loads(call)
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            text = f"{type(error).__name__}: {error}"
            raise CarriedError(cloudpickle.dumps(error), text) from error
        raise
    if os.environ.get("RANK", "0") != "0":
        return b""
    return bytes(cloudpickle.dumps(result))
