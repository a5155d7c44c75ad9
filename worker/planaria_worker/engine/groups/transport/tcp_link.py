"""Messages between neighbours over our own TCP connections.

gloo would carry them, but with two threads on each message's way that wake each other, and with
waits that a cut does not always end (docs/decisions/0007). Here the thread that waits reads the
connection itself: the kernel wakes it, for a message as for the connection's end.
"""

import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from planaria_worker.engine.groups.transport.backends import PeerConnection, Pending
from planaria_worker.engine.groups.transport.sockets import end

_LENGTH = struct.Struct("!Q")
"""Precedes each message: its number of bytes."""
_POLL_SECONDS = 0.02
"""How often a thread that waits for a message to leave looks whether the group was shut."""


class TcpLink:
    """One rank's connections to its neighbours, by their ranks."""

    def __init__(self, neighbours: Mapping[int, "Neighbour"]) -> None:
        self._neighbours = neighbours

    def send(self, tensor: Tensor, dst: int) -> Pending:
        return self._neighbours[dst].send(tensor)

    def recv(self, tensor: Tensor, src: int) -> Pending:
        return self._neighbours[src].receive(tensor)

    def has_message(self, src: int) -> bool:
        return self._neighbours[src].has_message()

    @property
    def peer_connections(self) -> Sequence[PeerConnection]:
        return connections_to(self._neighbours)

    def cut(self) -> None:
        for neighbour in self._neighbours.values():
            neighbour.cut()


def connections_to(neighbours: Mapping[int, "Neighbour"]) -> Sequence[PeerConnection]:
    """Return the connections to some neighbours, by their ranks."""
    return tuple(
        PeerConnection(rank=rank, socket=each.reader, is_outgoing=each.is_outgoing)
        for rank, each in neighbours.items()
    )


class Neighbour:
    """The connection to one neighbour; one thread at a time starts operations."""

    def __init__(
        self, opened: socket.socket, timeout_seconds: float, *, is_outgoing: bool = True
    ) -> None:
        self.is_outgoing = is_outgoing
        self._connection = _Connection(opened, timeout_seconds)
        self._last_incoming: _Incoming | None = None
        self._last_outgoing: _Outgoing | None = None
        self._writer: queue.SimpleQueue[_Outgoing | None] | None = None
        self._is_cut = False

    def send(self, tensor: Tensor) -> Pending:
        """Give the kernel what it takes at once; a thread writes the rest."""
        last, message = self._last_outgoing, _Outgoing(_bytes_of(tensor))
        self._last_outgoing = message
        if last is None or last.is_over():
            try:
                message.write(self._connection.at_once)
            except BlockingIOError:
                pass
            except OSError as error:
                raise RuntimeError(f"the neighbour is lost: {error}") from None
        if not message.is_over():
            self._write_later(message)
        return message

    @property
    def reader(self) -> socket.socket:
        """Readable when a message has come, or the connection has ended."""
        return self._connection.reader

    def receive(self, tensor: Tensor) -> Pending:
        """Register the tensor that the next message fills; `wait` reads it."""
        last = self._last_incoming
        before = None if last is None or last.is_over() else last
        self._last_incoming = _Incoming(_bytes_of(tensor), self._connection, before)
        return self._last_incoming

    def has_message(self) -> bool:
        """Whether a message has begun to arrive, or the connection has ended.

        Those before it were read.
        """
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        return bool(poll.poll(0))

    def cut(self) -> None:
        self._is_cut = True
        end(self._connection.reader)
        if self._writer is not None:
            self._writer.put(None)

    def _write_later(self, message: "_Outgoing") -> None:
        if self._writer is None:
            self._writer = queue.SimpleQueue()
            threading.Thread(
                target=_write_all,
                args=(self._writer, self._connection),
                name="pipeline-link",
                daemon=True,
            ).start()
        self._writer.put(message)
        if self._is_cut:  # meanwhile
            self._writer.put(None)


class _Connection:
    """A socket for each use, closed when no thread uses any of them.

    The number of a descriptor that is closed under a thread could be another file's a moment later.
    """

    def __init__(self, opened: socket.socket, timeout_seconds: float) -> None:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._all = [opened]
        self.reader, self.writer, self.at_once = opened, self._another(), self._another()
        self.writer.settimeout(timeout_seconds)
        self.at_once.setblocking(False)

    def __del__(self) -> None:
        for one in self._all:
            one.close()

    def _another(self) -> socket.socket:
        self._all.append(self._all[0].dup())
        return self._all[-1]


class _Outgoing:
    """A message that may not be written yet."""

    def __init__(self, content: memoryview) -> None:
        self._rest = [memoryview(_LENGTH.pack(len(content))), content]
        self._has_left = threading.Event()
        self._failure = ""

    def write(self, connection: socket.socket) -> None:
        """Write as much as the connection takes.

        Raises:
            OSError: it takes no more, or has ended.
        """
        while self._rest:
            self._rest = _rest_after(self._rest, connection.sendmsg(self._rest))
        self._has_left.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._has_left.set()

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self._has_left.wait(_POLL_SECONDS):
            if shut.is_set():
                return False
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out after {timeout_seconds:g} s")
        if self._failure and not shut.is_set():
            raise RuntimeError(self._failure)
        return not self._failure

    def is_over(self) -> bool:
        return self._has_left.is_set()


class _Incoming:
    """A message that may not be read yet; the one before it is read first."""

    def __init__(
        self, content: memoryview, connection: _Connection, before: "_Incoming | None"
    ) -> None:
        self._length = bytearray(_LENGTH.size)
        self._num_bytes = len(content)
        self._rest = [memoryview(self._length), content]
        self._connection = connection
        self._before = before

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        try:
            self._connection.reader.settimeout(timeout_seconds)
            self._read()
        except TimeoutError:
            raise RuntimeError(f"timed out after {timeout_seconds:g} s") from None
        except OSError as error:
            if shut.is_set():
                return False
            raise RuntimeError(str(error)) from None
        return True

    def is_over(self) -> bool:
        return not self._rest

    def _read(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before._read()
        while self._rest:
            count, *_ = self._connection.reader.recvmsg_into(self._rest)
            if count == 0:
                raise ConnectionError("the neighbour ended the connection")
            self._rest = _rest_after(self._rest, count)
            if len(self._rest) < 2:  # its length is there
                self._check_length()

    def _check_length(self) -> None:
        """Refuse a message of another size: the neighbours are not at the same operation."""
        (found,) = _LENGTH.unpack(self._length)
        if found != self._num_bytes:
            raise ConnectionError(
                f"the neighbour sent a message of {found} bytes; one of {self._num_bytes} "
                "was expected"
            )


def _write_all(messages: "queue.SimpleQueue[_Outgoing | None]", connection: _Connection) -> None:
    while (message := messages.get()) is not None:
        try:
            message.write(connection.writer)
        except OSError as error:
            # A part may have left: the peer would take what is sent next for the rest of it.
            end(connection.writer)
            message.fail(str(error))
        del message


def _rest_after(parts: list[memoryview], count: int) -> list[memoryview]:
    """What is left of a message after so many bytes."""
    left = []
    for part in parts:
        if count < len(part):
            left.append(part[count:])
        count = max(count - len(part), 0)
    return left


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().view(-1).view(torch.uint8).numpy().data
