"""A pipeline's messages: every rank is connected to its neighbours, and reads and writes by itself.

gloo would carry them, but for two threads on each message's way that wake each other, and for its
waits, which a cut does not always end. A thread that reads its own connection is woken by the
kernel, by a message as by the connection's end.

What is summed along a line is small (the exchange): gloo takes a dozen wake-ups for it, a line one
for each rank that it passes.
"""

import contextlib
import queue
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from planaria_worker.engine.groups.acceptor import Acceptor
from planaria_worker.engine.groups.addresses import format_address, parse_address
from planaria_worker.engine.groups.backends import Pending

_LENGTH = struct.Struct("!Q")
"""What goes before each message: how many bytes it has."""
_TOKEN_BYTES = 16
_LOOK_UP_SECONDS = 0.02
"""How often who waits for a message to leave looks whether the group was shut."""


class PipelineLinkConnector:
    """One rank's end: listens for the rank before it, calls the rank behind it."""

    def __init__(self, host: str, operation_timeout_seconds: float) -> None:
        self._opened: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._opened.append(self._listener)
        self._token = secrets.token_hex(_TOKEN_BYTES // 2)
        self._operation_timeout_seconds = operation_timeout_seconds
        self._is_cut = False
        self.address = f"{format_address(host, self._listener.getsockname()[1])}/{self._token}"

    def connect(
        self,
        store: Store,  # noqa: ARG002 - the addresses say all
        rank: int,
        addresses: Sequence[str],
        *,
        timeout_seconds: float,
    ) -> "PipelineLinkBackend":
        deadline = time.monotonic() + timeout_seconds
        neighbours = {}
        try:
            if rank + 1 < len(addresses):
                neighbours[rank + 1] = self._call(addresses[rank + 1], deadline)
            if rank > 0:
                acceptor = Acceptor(self._listener, self._token.encode())
                neighbours[rank - 1] = self._noted(acceptor.wait_for_neighbour(deadline))
        except OSError as error:
            raise RuntimeError(f"a neighbour did not come: {error}") from None
        self._opened = [self._listener]  # the others are the backend's
        return PipelineLinkBackend(
            {
                rank: _PipelineLink(connection, self._operation_timeout_seconds)
                for rank, connection in neighbours.items()
            }
        )

    def __del__(self) -> None:
        for opened in self._opened:
            opened.close()

    def cut(self) -> None:
        self._is_cut = True
        for opened in list(self._opened):
            _end(opened)

    def _call(self, address: str, deadline: float) -> socket.socket:
        where, _, token = address.partition("/")
        host, port = parse_address(where)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = self._noted(socket.socket(family, socket.SOCK_STREAM))
        connection.settimeout(max(deadline - time.monotonic(), 0.1))
        connection.connect((host, port))
        if connection.getsockname() == connection.getpeername():
            raise ConnectionError(f"nobody listens at {where}")  # the kernel joined both ends
        connection.sendall(token.encode())
        return connection

    def _noted(self, opened: socket.socket) -> socket.socket:
        self._opened.append(opened)
        if self._is_cut:  # meanwhile
            _end(opened)
        return opened


class PipelineLinkBackend:
    """One rank's connections to its neighbours, by their ranks."""

    def __init__(self, lines: Mapping[int, "_PipelineLink"]) -> None:
        self._lines = lines
        self._last_sum: _Sum | None = None

    def send(self, tensor: Tensor, dst: int) -> Pending:
        return self._lines[dst].send(tensor)

    def recv(self, tensor: Tensor, src: int) -> Pending:
        return self._lines[src].receive(tensor)

    def all_reduce(self, tensor: Tensor) -> Pending:
        last = self._last_sum
        before = None if last is None or last.is_over() else last
        self._last_sum = _Sum(tensor, tuple(self._lines.values()), before)
        return self._last_sum

    def has_message(self, src: int) -> bool:
        return self._lines[src].has_message()

    def cut(self) -> None:
        for line in self._lines.values():
            line.cut()


class _PipelineLink:
    """A connection to one neighbour; operations are started by one thread at a time."""

    def __init__(self, opened: socket.socket, timeout_seconds: float) -> None:
        self._connection = _Connection(opened, timeout_seconds)
        self._last_receipt: _Receipt | None = None
        self._last_dispatch: _Dispatch | None = None
        self._writer: queue.SimpleQueue[_Dispatch | None] | None = None
        self._is_cut = False

    def send(self, tensor: Tensor) -> Pending:
        """Gives the kernel what it takes; a thread of its own sees to the rest."""
        last, dispatch = self._last_dispatch, _Dispatch(_bytes_of(tensor))
        self._last_dispatch = dispatch
        if last is None or last.is_over():
            try:
                dispatch.write(self._connection.at_once)
            except BlockingIOError:
                pass
            except OSError as error:
                raise RuntimeError(f"the neighbour is gone: {error}") from None
        if not dispatch.is_over():
            self._leave(dispatch)
        return dispatch

    @property
    def reader(self) -> socket.socket:
        """Readable when a message has come, or the connection has ended."""
        return self._connection.reader

    def receive(self, tensor: Tensor) -> Pending:
        """Notes what the next message is to fill; it is read when it is waited for."""
        last = self._last_receipt
        before = None if last is None or last.is_over() else last
        self._last_receipt = _Receipt(_bytes_of(tensor), self._connection, before)
        return self._last_receipt

    def has_message(self) -> bool:
        """Whether one has begun to arrive, or the connection has ended; those before are read."""
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        return bool(poll.poll(0))

    def cut(self) -> None:
        self._is_cut = True
        _end(self._connection.reader)
        if self._writer is not None:
            self._writer.put(None)

    def _leave(self, dispatch: "_Dispatch") -> None:
        if self._writer is None:
            self._writer = queue.SimpleQueue()
            threading.Thread(
                target=_write_all, args=(self._writer, self._connection), name="line", daemon=True
            ).start()
        self._writer.put(dispatch)
        if self._is_cut:  # meanwhile
            self._writer.put(None)


class _Connection:
    """A socket for each use. They are closed when nobody uses any of them any more: the number of a
    descriptor that is closed under a thread could be another file's a moment later.
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


class _Dispatch:
    """A message that may not have left yet."""

    def __init__(self, content: memoryview) -> None:
        self._rest = [memoryview(_LENGTH.pack(len(content))), content]
        self._has_left = threading.Event()
        self._failure = ""

    def write(self, connection: socket.socket) -> None:
        """Writes what the connection takes.

        Raises:
            OSError: it takes no more, or has ended.
        """
        while self._rest:
            self._rest = _behind(self._rest, connection.sendmsg(self._rest))
        self._has_left.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._has_left.set()

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not self._has_left.wait(_LOOK_UP_SECONDS):
            if shut.is_set():
                return False
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out after {timeout_seconds:g} s")
        if self._failure and not shut.is_set():
            raise RuntimeError(self._failure)
        return not self._failure

    def is_over(self) -> bool:
        return self._has_left.is_set()


class _Receipt:
    """A message that may not have been read yet; the one before it is read first."""

    def __init__(
        self, content: memoryview, connection: _Connection, before: "_Receipt | None"
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
            self._rest = _behind(self._rest, count)
            if len(self._rest) < 2:  # its length is there
                self._check_length()

    def _check_length(self) -> None:
        """Neighbours that are not at the same place must not take each other's bytes for theirs."""
        (found,) = _LENGTH.unpack(self._length)
        if found != self._num_bytes:
            raise ConnectionError(
                f"the neighbour sent a message of {found} bytes, where one of {self._num_bytes} "
                "was due"
            )


class _Sum:
    """A sum over all ranks that may not have come through yet; the one before it is waited for
    first.

    It goes along the line both ways at once: what comes from one side has the ranks there, and goes
    on to the other with this rank's part.
    """

    def __init__(
        self, tensor: Tensor, lines: Sequence[_PipelineLink], before: "_Sum | None"
    ) -> None:
        self._total = tensor
        self._own = tensor.clone()
        self._before = before
        self._awaited = list(lines)
        self._onward = dict(zip(lines, reversed(lines), strict=True)) if len(lines) > 1 else {}
        self._sent: list[Pending] = []
        if not self._onward:  # an end of the line
            self._sent = [line.send(self._own) for line in lines]

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        deadline = time.monotonic() + timeout_seconds
        before, self._before = self._before, None
        if before is not None and not before.wait(timeout_seconds, shut):
            return False
        while self._awaited:
            line = self._first_to_speak(timeout_seconds, deadline)
            part = torch.empty_like(self._own)
            if not line.receive(part).wait(timeout_seconds, shut):
                return False
            self._awaited.remove(line)
            self._total.add_(part)
            if line in self._onward:
                self._sent.append(self._onward[line].send(part.add_(self._own)))
        return all(sent.wait(timeout_seconds, shut) for sent in self._sent)

    def is_over(self) -> bool:
        return not self._awaited

    def _first_to_speak(self, timeout_seconds: float, deadline: float) -> _PipelineLink:
        poll = select.poll()
        for line in self._awaited:
            poll.register(line.reader, select.POLLIN)
        ready = poll.poll(1000 * max(deadline - time.monotonic(), 0.0))
        if not ready:
            raise RuntimeError(f"timed out after {timeout_seconds:g} s")
        return next(line for line in self._awaited if line.reader.fileno() == ready[0][0])


def _write_all(dispatches: "queue.SimpleQueue[_Dispatch | None]", connection: _Connection) -> None:
    while (dispatch := dispatches.get()) is not None:
        try:
            dispatch.write(connection.writer)
        except OSError as error:
            # A part may have left: what is sent behind it would fill its rest.
            _end(connection.writer)
            dispatch.fail(str(error))
        del dispatch


def _behind(parts: list[memoryview], count: int) -> list[memoryview]:
    """What is left of a message behind so many bytes."""
    left = []
    for part in parts:
        if count < len(part):
            left.append(part[count:])
        count = max(count - len(part), 0)
    return left


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def _end(opened: socket.socket) -> None:
    """Ends a connection, or a wait for one, for every thread that uses it. Never raises."""
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
