"""Finds this process's own TCP connections by their addresses, and cuts them.

gloo cannot be interrupted, and does not reveal its descriptors. But the kernel lists them
(/proc/self/fd), and `shutdown` on a duplicate ends a connection for every thread that is blocked in
it, in milliseconds (8 to 27 measured), even if the peer is stopped. Only its addresses show that a
connection is gloo's, never the time at which it appeared: the process also has connections to a
rendezvous store, to copies and to an agent, and cutting one of those would hang the recovery.
"""

import contextlib
import os
import select
import socket
import stat
from collections.abc import Callable, Collection, Iterable, Iterator

from planaria_worker.addresses import Address, plain

_DESCRIPTORS = "/proc/self/fd"


def open_sockets() -> frozenset[str]:
    """Names of all sockets of this process; the kernel never reuses a name.

    A later scan can skip these: looking at a hundred sockets takes a millisecond, and every engine
    scans several times when groups are built.
    """
    return frozenset(name for _, name in _descriptors() if name.startswith("socket:"))


def find_connections(
    is_wanted: Callable[[Address, Address], bool], skipped: Collection[str] = ()
) -> list[socket.socket]:
    """Duplicate the connected TCP sockets whose (local, remote) addresses are wanted.

    One duplicate for each connection, however many descriptors it has: other scans may have made
    duplicates. The caller closes them.

    Args:
        is_wanted: decides by the two addresses.
        skipped: names of sockets to skip.
    """
    found: dict[int, socket.socket] = {}
    for duplicate in _tcp_sockets(skipped):
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


def listening_addresses(skipped: Collection[str] = ()) -> set[Address]:
    """Addresses where this process listens, except with the `skipped` sockets."""
    addresses = set()
    for duplicate in _tcp_sockets(skipped):
        with duplicate, contextlib.suppress(OSError):
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                addresses.add(plain(duplicate.getsockname()))
    return addresses


def has_end(connections: Iterable[socket.socket]) -> bool:
    """Whether a connection was ended, by a peer or here; received data may still be unread."""
    poll = select.poll()
    for connection in connections:
        with contextlib.suppress(ValueError):  # closed in between
            poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def end(opened: socket.socket) -> None:
    """End a connection, or a listener's wait, for all threads that use it. Never raises."""
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def cut(connection: socket.socket) -> None:
    """End a connection for all its users, and close this duplicate. Never raises."""
    end(connection)
    with contextlib.suppress(OSError):
        connection.close()


def _tcp_sockets(skipped: Collection[str]) -> Iterator[socket.socket]:
    """Duplicates of all TCP sockets; other threads may close the originals at any moment."""
    for descriptor, name in _descriptors():
        if not name.startswith("socket:") or name in skipped:
            continue
        duplicate = _duplicate_socket(descriptor)
        if duplicate is not None:
            yield duplicate


def _descriptors() -> Iterator[tuple[int, str]]:
    """The numbers of all descriptors, and what they are."""
    for number in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a third of pathlib's time
        with contextlib.suppress(OSError):  # closed in between
            yield int(number), os.readlink(f"{_DESCRIPTORS}/{number}")  # noqa: PTH115 - as above


def _duplicate_socket(descriptor: int) -> socket.socket | None:
    """Duplicate a descriptor if it is a TCP socket.

    The caller has checked its name, since closing a duplicate of a file would drop this process's
    locks on the file. The duplicate is checked again: another thread may have closed and reused the
    number in between.
    """
    try:
        number = os.dup(descriptor)
    except OSError:  # closed in between
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
