"""Ports for processes that must know theirs before they start."""

import contextlib
import random
import socket

_NEVER_EPHEMERAL = (15_000, 32_768)


def free_port() -> int:
    """Return a port that was free a moment ago; prefer binding port 0 where possible.

    It lies below those that outgoing connections are given: a server that is started again would
    now and then find its port taken by a connection, even by one that looks for that very server.
    """
    while True:
        port = random.randrange(*_NEVER_EPHEMERAL)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
