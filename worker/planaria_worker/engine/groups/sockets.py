"""Finding this process's own TCP connections by their addresses, and cutting them.

gloo can neither be interrupted nor tells its descriptors. But the kernel lists them
(/proc/self/fd), and `shutdown` on a duplicate ends a connection for every thread that is blocked in
it, in milliseconds, also when the peer is stopped (FACTS: 8-27 ms). A connection is taken for
gloo's by its addresses alone, never by when it appeared: the process also has a rendezvous store,
copies and an agent, and to cut one of those would hang the recovery.
"""

import contextlib
import os
import select
import socket
import stat
from collections.abc import Callable, Collection, Iterable, Iterator

from planaria_worker.engine.groups.addresses import Address, plain

_DESCRIPTORS = "/proc/self/fd"


def open_sockets() -> frozenset[str]:
    """Names of all sockets of this process. The kernel does not give a name a second time.

    A later scan need not look at these: to look at a hundred sockets takes a millisecond, which
    every engine would take several times whenever groups are built.
    """
    return frozenset(name for _, name in _descriptors() if name.startswith("socket:"))


def find_connections(
    is_wanted: Callable[[Address, Address], bool], beside: Collection[str] = ()
) -> list[socket.socket]:
    """Duplicates of the connected TCP sockets whose (local, remote) addresses are wanted.

    One for each connection, however many descriptors it has: this scan, or one of another thread,
    may come across duplicates. The caller closes them.

    Args:
        is_wanted: of the two addresses.
        beside: sockets that need not be looked at.
    """
    found: dict[int, socket.socket] = {}
    for duplicate in _tcp_sockets(beside):
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


def listening_addresses(beside: Collection[str] = ()) -> set[Address]:
    """Where this process listens; sockets `beside` are left out."""
    addresses = set()
    for duplicate in _tcp_sockets(beside):
        with duplicate, contextlib.suppress(OSError):
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                addresses.add(plain(duplicate.getsockname()))
    return addresses


def has_end(connections: Iterable[socket.socket]) -> bool:
    """Whether a connection was ended, by a peer or here; what it brought may still be unread."""
    poll = select.poll()
    for connection in connections:
        with contextlib.suppress(ValueError):  # closed meanwhile
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


def _tcp_sockets(beside: Collection[str]) -> Iterator[socket.socket]:
    """Duplicates of all TCP sockets; other threads may close the originals at any moment."""
    for descriptor, name in _descriptors():
        if not name.startswith("socket:") or name in beside:
            continue
        duplicate = _duplicate_socket(descriptor)
        if duplicate is not None:
            yield duplicate


def _descriptors() -> Iterator[tuple[int, str]]:
    """The numbers of all descriptors, and what they are."""
    for number in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a third of pathlib's time
        with contextlib.suppress(OSError):  # closed meanwhile
            yield int(number), os.readlink(f"{_DESCRIPTORS}/{number}")  # noqa: PTH115 - as above


def _duplicate_socket(descriptor: int) -> socket.socket | None:
    """A duplicate, if the descriptor is a TCP socket.

    Looked at before, since closing a duplicate of a file would drop this process's locks on it; and
    here, since only a duplicate is sure to remain what it was when it was looked at.
    """
    try:
        number = os.dup(descriptor)
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
