"""Finding this process's own TCP connections by their addresses, and cutting them.

gloo can neither be interrupted nor tells its descriptors. But the kernel lists them
(/proc/self/fd), and `shutdown` on a duplicate ends a connection for every thread that is blocked in
it, in milliseconds, also when the peer is stopped (FACTS: 8-27 ms). A connection is taken for
gloo's by its addresses alone, never by when it appeared: the process also has a rendezvous store,
copies and an agent, and to cut one of those would hang the recovery.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from planaria_worker.engine.communication.addresses import Address, plain

_DESCRIPTORS = Path("/proc/self/fd")


def find_connections(
    is_wanted: Callable[[Address, Address], bool],
) -> list[socket.socket]:
    """Duplicates of the connected TCP sockets whose (local, remote) addresses are wanted.

    One for each connection, however many descriptors it has: this scan, or one of another thread,
    may come across duplicates. The caller closes them.
    """
    found: dict[int, socket.socket] = {}
    for duplicate in _tcp_sockets():
        try:
            wanted = is_wanted(plain(duplicate.getsockname()), plain(duplicate.getpeername()))
        except OSError:  # listening, or no longer connected
            wanted = False
        inode = os.fstat(duplicate.fileno()).st_ino
        if wanted and inode not in found:
            found[inode] = duplicate
        else:
            duplicate.close()
    return list(found.values())


def listening_addresses() -> set[Address]:
    """Where this process listens."""
    addresses = set()
    for duplicate in _tcp_sockets():
        with duplicate, contextlib.suppress(OSError):
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                addresses.add(plain(duplicate.getsockname()))
    return addresses


def cut(connection: socket.socket) -> None:
    """Ends a connection for everybody who uses it, and closes this duplicate. Never raises."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        connection.close()


def _tcp_sockets() -> Iterator[socket.socket]:
    """Duplicates of all TCP sockets; other threads may close the originals at any moment."""
    for link in _DESCRIPTORS.iterdir():
        duplicate = _duplicate_socket(link)
        if duplicate is not None:
            yield duplicate


def _duplicate_socket(link: Path) -> socket.socket | None:
    """A duplicate, if the descriptor is a TCP socket.

    Looked at twice: before, since closing a duplicate of a file would drop this process's locks on
    it; and after, since only a duplicate is sure to remain what it was when it was looked at.
    """
    try:
        if not str(link.readlink()).startswith("socket:"):
            return None
        number = os.dup(int(link.name))
    except OSError:  # closed meanwhile
        return None
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        os.close(number)
        return None
    duplicate = socket.socket(fileno=number)
    if duplicate.family in (socket.AF_INET, socket.AF_INET6) and (
        duplicate.type == socket.SOCK_STREAM
    ):
        return duplicate
    duplicate.close()
    return None
