"""The control thread: the Unix socket of the agent, its lease, and its directives.

It answers while the engine imports, trains or hangs: nothing here waits for anybody. The agent may
go away and come back, or another in its place; what it has not received waits for it, reports that
the coordinator may not have come again, and the newest connection counts.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineCommand, EngineEvent
from planaria.api.worker.v1.report_pb2 import EngineSnapshot
from planaria_common.logging import get_logger
from planaria_common.priority import come_first
from planaria_worker.delivery import DeliveryQueue
from planaria_worker.link import Decoder, LinkError, encode, socket_address

SNAPSHOT_SECONDS = 1.0
_READ_BYTES = 1 << 16
_REST_SECONDS = 0.1

_log = get_logger("control")


class _Agent:
    """One connection of the agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.decoder = Decoder(EngineCommand)
        self.event: EngineEvent | None = None
        self.sending = b""
        self.num_sent = 0
        self.was_told_all = False
        """Nothing more is sent: it hangs up once it has read so far."""


class Control:
    """Serves one agent at a time, on a thread of its own."""

    def __init__(
        self,
        socket_path: Path,
        *,
        lease_seconds: float,
        snapshot: Callable[[], EngineSnapshot],
        on_directive: Callable[[Directive], None],
        on_lease_expired: Callable[[bool], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Binds the socket; nothing is served before `start`.

        Args:
            socket_path: where the agent connects; a socket that an earlier process left is removed.
            lease_seconds: how long the engine goes on before the first Lease.
            snapshot: what the engine is doing; sent first, then once a second and when it changes.
            on_directive: called on this thread; must not wait for anything.
            on_lease_expired: called on this thread when no Lease came in time; returns for how long
                the engine may do without yet. With True when that is over as well.
            monotonic: the clock of snapshots and lease.
        """
        self._snapshot = snapshot
        self._on_directive = on_directive
        self._on_lease_expired = on_lease_expired
        self._monotonic = monotonic
        self._lease_end = monotonic() + lease_seconds
        self._is_overdue = False
        self._next_snapshot = monotonic()
        self._lock = threading.Lock()
        self._events: DeliveryQueue[EngineEvent] = DeliveryQueue()
        self._said = threading.Condition(self._lock)
        self._agent: _Agent | None = None
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._listener = _listen(socket_path)
        self._is_closed = False
        self._is_leaving = False
        self._has_left = False
        self._selector.register(self._wakened, selectors.EVENT_READ, self._woken)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def post(self, event: EngineEvent) -> None:
        """Sends an event as soon as an agent is there; any thread."""
        with self._lock:
            self._events.post(event)
        self._wake()

    def report(self, event: EngineEvent) -> None:
        """Sends an event, to every agent that comes until the coordinator has it; any thread."""
        with self._lock:
            self._events.report(event)
        self._wake()

    def send_snapshot(self) -> None:
        """Sends a snapshot now instead of within a second; any thread."""
        self._next_snapshot = self._monotonic()
        self._wake()

    def take_leave(self, timeout_seconds: float) -> bool:
        """Says what was posted, and waits until the agent hangs up: then it has read everything.

        Were the process to end earlier, a command of the agent would fail, and its end of the link
        with it: what lies there unread would be lost. Not from the control thread itself.

        Args:
            timeout_seconds: how long an agent may take, also to come if there is something to say.

        Returns:
            Whether the agent hung up, or there is none and nothing to say.
        """
        self._is_leaving = True
        self._wake()
        with self._said:
            return self._said.wait_for(
                lambda: self._has_left or (self._agent is None and not len(self._events)),
                timeout_seconds,
            )

    def close(self) -> None:
        """Ends the thread and the connection; not from the control thread itself."""
        self._is_closed = True
        with contextlib.suppress(OSError):  # the thread has looked already, and closed everything
            self._wake()
        self._thread.join()

    def _run(self) -> None:
        come_first()
        while not self._is_closed:
            try:
                self._turn()
            except Exception:  # a thread that answers no directive is worse than any error
                _log.exception("control_failed")
                self._hang_up()
                time.sleep(_REST_SECONDS)  # such as without descriptors: the next turn fails, too
        self._hang_up()
        self._selector.close()
        for end in (self._listener, self._waker, self._wakened):
            end.close()

    def _turn(self) -> None:
        now = self._monotonic()
        wait_seconds = max(0.0, min(self._next_snapshot, self._lease_end) - now)
        for key, mask in self._selector.select(wait_seconds):
            key.data(mask)
        if self._monotonic() >= self._lease_end:
            self._lease_end = self._monotonic() + self._on_lease_expired(self._is_overdue)
            self._is_overdue = True
        self._send()

    def _woken(self, _mask: int) -> None:
        self._wakened.recv(_READ_BYTES)

    def _accept(self, _mask: int) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        self._hang_up()  # a newer connection replaces the older
        with self._lock:
            self._events.send_again()
        self._agent = _Agent(connection)
        self._selector.register(connection, selectors.EVENT_READ, self._serve)
        self._next_snapshot = self._monotonic()

    def _serve(self, mask: int) -> None:
        agent = self._agent
        if agent is None or not mask & selectors.EVENT_READ:
            return
        try:
            data = agent.connection.recv(_READ_BYTES)
            if not data:
                self._hang_up()
            for command in agent.decoder.feed(data):
                self._obey(command)
        except BlockingIOError:
            return
        except (OSError, LinkError) as error:
            _log.info("agent_lost", cause=str(error))
            self._hang_up()

    def _obey(self, command: EngineCommand) -> None:
        if command.HasField("lease"):
            self._lease_end = self._monotonic() + command.lease.duration.ToNanoseconds() / 1e9
            self._is_overdue = False
        elif command.HasField("directive"):
            self._on_directive(command.directive)
        elif command.HasField("reports_stored"):
            with self._lock:
                self._events.acknowledge(command.reports_stored)

    def _send(self) -> None:
        """Writes as much as the agent takes: a snapshot when one is due, then events in order."""
        agent = self._agent
        if agent is None:
            self._next_snapshot = self._monotonic() + SNAPSHOT_SECONDS
            return
        is_leaving = self._is_leaving  # what was posted before it is in the queue by now
        try:
            while self._load(agent):
                sent = agent.connection.send(agent.sending[agent.num_sent :])
                agent.num_sent += sent
                self._unload(agent)
            if is_leaving and not agent.was_told_all:
                agent.connection.shutdown(socket.SHUT_WR)
                agent.was_told_all = True
            self._selector.modify(agent.connection, selectors.EVENT_READ, self._serve)
        except BlockingIOError:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(agent.connection, both, self._serve)
            self._next_snapshot = max(self._next_snapshot, self._monotonic() + SNAPSHOT_SECONDS)
        except OSError as error:
            _log.info("agent_lost", cause=str(error))
            self._hang_up()

    def _load(self, agent: _Agent) -> bool:
        """Begin the next message, if there is one."""
        if agent.was_told_all:
            self._next_snapshot = self._monotonic() + SNAPSHOT_SECONDS
            return False
        if agent.sending:
            return True
        if self._monotonic() >= self._next_snapshot:
            self._next_snapshot = self._monotonic() + SNAPSHOT_SECONDS
            agent.sending = encode(EngineEvent(snapshot=self._snapshot()))
        else:
            with self._lock:
                agent.event = self._events.head
            agent.sending = b"" if agent.event is None else encode(agent.event)
        return bool(agent.sending)

    def _unload(self, agent: _Agent) -> None:
        """Forgets an event once all of it was sent: a broken one is sent again as a whole."""
        if agent.num_sent < len(agent.sending):
            return
        if agent.event is not None:
            with self._lock:
                self._events.pop(agent.event)
        agent.event, agent.sending, agent.num_sent = None, b"", 0

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._selector.unregister(self._agent.connection)
            self._agent.connection.close()
            with self._said:
                self._has_left = self._agent.was_told_all
                self._agent = None
                self._said.notify_all()

    def _wake(self) -> None:
        try:
            self._waker.send(b"w")
        except BlockingIOError:
            return  # it has enough to wake up for


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    with socket_address(path) as address:
        listener.bind(address)
    listener.listen()
    listener.setblocking(False)
    return listener
