"""Sums between CPUs. gloo cannot be interrupted: its connections are found and cut under its hands.

Not even then do all its waits end. When a connection ends while gloo's loop takes a message off its
list of waiting ones, it can lose it, and tells nobody: who waits for that all-reduce waits for the
timeout. With traffic both ways on a loaded machine, every twentieth cut had such a victim. Hence no
thread of ours waits in gloo without a way out: whoever waits looks whether the group was shut here,
or a connection ended by a peer.
"""

import contextlib
import json
import queue
import socket
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroupGloo, Store
from torch._C._distributed_c10d import Work as BackendWork

from planaria_worker.engine.communication.addresses import Address, format_address, parse_address
from planaria_worker.engine.communication.backends import Pending, RawProcessGroup
from planaria_worker.engine.communication.sockets import (
    cut,
    find_connections,
    has_end,
    listening_addresses,
    open_sockets,
)

_MAX_DEVICE_ATTEMPTS = 10
_LOOK_UP_SECONDS = 0.02
"""How often a wait looks whether the group was shut; until then, gloo had its chance to say so."""
_LOST_SECONDS = 1.0
"""How long gloo has to read what came before a peer ended a connection, or to tell of the end."""
_CUT = "cut while it connected"
_ENDED = "a peer ended its connection"


class GlooConnector:
    """A gloo device of its own for each group: its port tells the group's connections from others.

    Each pair of ranks has one connection, and one of its ends is the port of a device.

    gloo makes its group in a single call, in which it says what the others have to know and waits
    for what they said: it has a thread for that, and a store that goes no further than this object.
    """

    def __init__(
        self,
        host: str,
        rank: int,
        size: int,
        *,
        timeout_seconds: float,
        operation_timeout_seconds: float,
    ) -> None:
        self._operation_timeout_seconds = operation_timeout_seconds
        device, self._own, self._older = _open_device(host)
        self._members = {self._own}
        self._meeting = _Meeting()
        self._made: queue.SimpleQueue[RawProcessGroup | Exception] = queue.SimpleQueue()
        threading.Thread(
            target=_make,
            args=(
                self._meeting,
                rank,
                size,
                device,
                timedelta(seconds=timeout_seconds),
                self._made,
            ),
            name="make-gloo",
            daemon=True,
        ).start()

    @property
    def address(self) -> str:
        return f"{format_address(*self._own)}/{self._meeting.entries()}"

    def begin(
        self,
        addresses: Sequence[str],
        *,
        timeout_seconds: float,  # noqa: ARG002 - it has been running since the beginning
    ) -> None:
        devices, _, entries = zip(*(each.partition("/") for each in addresses), strict=True)
        self._members = {parse_address(device) for device in devices}
        self._meeting.hear(entries)

    def connect(
        self,
        store: Store,  # noqa: ARG002 - the addresses say all
        *,
        timeout_seconds: float,
    ) -> "GlooBackend":
        try:
            made = self._made.get(timeout=timeout_seconds)
        except queue.Empty:
            made = RuntimeError(f"timed out after {timeout_seconds:g} s")
        if isinstance(made, Exception):
            raise made
        connections, size = self._connections(), len(self._members)
        if len(connections) != size - 1:
            # Never go on with a group that could not be woken.
            for connection in connections:
                cut(connection)
            raise RuntimeError(f"found {len(connections)} connections of a group of {size} ranks")
        return GlooBackend(made, connections, self._operation_timeout_seconds)

    def cut(self) -> None:
        self._meeting.fail(_CUT)
        self._made.put(RuntimeError(_CUT))
        with contextlib.suppress(OSError):
            for connection in self._connections():
                cut(connection)

    def _connections(self) -> list[socket.socket]:
        others = self._members - {self._own}
        return find_connections(
            lambda local, remote: local == self._own or remote in others, self._older
        )


class _Meeting(Store):
    """What gloo takes for a store: notes its entries, and has it wait for those of the others.

    gloo asks for each rank's entries three times, also for its own. Each answer of a store in
    another process is a wait for the turns of two processes, and no such wait can be interrupted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._own: dict[str, str] = {}
        self._entries: Future[str] = Future()
        self._heard: Future[Mapping[str, bytes]] = Future()

    def entries(self) -> str:
        """What the others have to be told; waits until gloo has said it."""
        return self._entries.result()

    def hear(self, entries: Iterable[str]) -> None:
        """Takes the entries of all ranks, and lets gloo go on."""
        heard: dict[str, bytes] = {}
        for each in entries:
            heard |= {key: b64decode(value) for key, value in json.loads(each).items()}
        with contextlib.suppress(InvalidStateError):  # it has failed
            self._heard.set_result(heard)

    def fail(self, reason: str) -> None:
        """Ends all waits, those of gloo too."""
        for future in (self._entries, self._heard):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(RuntimeError(reason))

    def set(self, key: str, value: Any) -> None:
        """Bytes, of which torch's stub does not know."""
        self._own[key] = b64encode(bytes(value)).decode()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._heard.result()[key]

    def wait(self, keys: list[str], _timeout: timedelta | None = None) -> None:
        """Who waits for the first time has said all."""
        with contextlib.suppress(InvalidStateError):
            self._entries.set_result(json.dumps(self._own))
        missing = set(keys) - self._heard.result().keys()
        if missing:
            raise RuntimeError(f"gloo waits for {sorted(missing)}, which no rank has set")


class GlooBackend:
    """A gloo process group and duplicates of its sockets."""

    def __init__(
        self,
        process_group: RawProcessGroup,
        connections: list[socket.socket],
        timeout_seconds: float,
    ) -> None:
        self._process_group = process_group
        self._connections = connections
        self._options = AllreduceOptions()
        self._options.timeout = timedelta(seconds=timeout_seconds)

    def send(self, tensor: Tensor, dst: int) -> Pending:  # noqa: ARG002 - the protocol's
        raise TypeError("gloo sums: messages have a line")

    recv = send

    def all_reduce(self, tensor: Tensor) -> Pending:
        work = self._process_group.allreduce([tensor], self._options)
        return _AllReduce(work, self._connections)

    def cut(self) -> None:
        while self._connections:
            with contextlib.suppress(IndexError):  # another thread cuts as well
                cut(self._connections.pop())


class _AllReduce:
    """A collective runs in a thread of gloo's, so that to stop waiting for it costs nothing."""

    def __init__(self, work: BackendWork, connections: Collection[socket.socket]) -> None:
        self._work = work
        self._connections = connections

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        return _look_up(self._is_done, timeout_seconds, shut, self._connections)

    def is_over(self) -> bool:
        return self._work.is_completed()

    def _is_done(self, seconds: float) -> bool:
        timeout = timedelta(seconds=seconds)
        with contextlib.suppress(RuntimeError):  # it failed, or the time is over
            return self._work.wait(timeout)
        return self._work.is_completed() and self._work.wait(timeout)


def _look_up(
    is_done: Callable[[float], bool],
    timeout_seconds: float,
    shut: threading.Event,
    connections: Collection[socket.socket],
) -> bool:
    """Waits, and now and then looks whether the group was shut; once it was, one more time."""
    deadline, failure = time.monotonic() + timeout_seconds, f"timed out after {timeout_seconds:g} s"
    was_shut = False
    while not is_done(_LOOK_UP_SECONDS):
        if was_shut:
            return False
        if time.monotonic() > deadline:
            raise RuntimeError(failure)
        was_shut = shut.is_set()
        if failure != _ENDED and has_end(list(connections)):
            deadline, failure = min(deadline, time.monotonic() + _LOST_SECONDS), _ENDED
    return True


def _make(
    meeting: _Meeting,
    rank: int,
    size: int,
    device: object,
    timeout: timedelta,
    made: queue.SimpleQueue[RawProcessGroup | Exception],
) -> None:
    untyped: Any = ProcessGroupGloo  # its stub lacks the options that its constructor takes
    options = untyped._Options()
    options._devices = [device]
    options._timeout = timeout
    try:
        made.put(untyped(meeting, rank, size, options))
    except Exception as error:
        meeting.fail(str(error))
        made.put(error.with_traceback(None))


def _open_device(host: str) -> tuple[object, Address, Collection[str]]:
    """A gloo device, where it listens, and the sockets that are older than it.

    It does not tell its address: it is that of the one new listening socket. Peers connect, and
    the device accepts, from this moment on.
    """
    for _ in range(_MAX_DEVICE_ATTEMPTS):
        before = open_sockets()
        device = ProcessGroupGloo.create_device(hostname=host, lazy_init=False)
        appeared = listening_addresses(before)
        if len(appeared) == 1:
            return device, appeared.pop(), before
    raise RuntimeError(f"other threads opened ports all the while a group was made on {host}")
