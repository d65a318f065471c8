"""Where the processes of one node meet: on a port that is held from the moment it is chosen.

Nothing can come between the choice of a port and its use: either the process of rank 0 hosts the store of the process
group itself, or the launching process holds a listening socket and hands it to rank 0.
"""

from __future__ import annotations

import os
import socket
from typing import Any


def host_store(listener: int | None = None, port: int = 0) -> tuple[Any, int]:
    """Host a store that this process's process groups share (torch calls that a multi-tenant one).

    Args:
        listener: descriptor of a listening socket that becomes the store's; None opens one.
        port: of that socket; 0 takes a free one.

    Returns:
        The store, which holds the port as long as it lives, and its port.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        "127.0.0.1", port, None, True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener
    )
    return store, int(store.port)


class HeldPort:
    """A free port of this machine, held by a listening socket until rank 0 takes it over."""

    def __init__(self) -> None:
        self.socket = _listen()
        self.port: int = self.socket.getsockname()[1]

    def close(self) -> None:
        """Let go of it. Again is a no-op."""
        self.socket.close()


def take_over(held: socket.socket) -> Any:
    """In the process of rank 0: host the store on the socket that it was handed."""
    port = held.getsockname()[1]
    store, _ = host_store(os.dup(held.fileno()), port)  # the store closes its descriptor, the socket object its own
    held.close()
    return store


def _listen() -> socket.socket:
    """A listening socket on a free port, for IPv4 and IPv6 where the machine has both, as torch's own store."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=2048, dualstack_ipv6=True)
        except OSError:
            pass
    return socket.create_server(("", 0), backlog=2048)
