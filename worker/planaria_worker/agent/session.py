"""The session with the coordinator: one bidirectional stream, opened again whenever it ends.

Nothing that happens to a session touches the engines. gRPC reports a lost stream in several ways
(AioRpcError, InvalidStateError from a write, end of stream): each just ends the session.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from planaria.api.worker.v1.report_pb2 import EngineSnapshot
from planaria.api.worker.v1.worker_service_pb2 import (
    Heartbeat,
    Hello,
    LogLines,
    SessionRequest,
    SessionResponse,
    Welcome,
)
from planaria.api.worker.v1.worker_service_pb2_grpc import WorkerServiceStub
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.grpcclient import bearer, open_channel, to_planaria_error
from planaria_common.logging import get_logger
from planaria_worker.agent.concurrency import in_thread, until_first_ends
from planaria_worker.agent.outbox import Outbox

MAX_BACKOFF_SECONDS = 2.0
WELCOME_TIMEOUT_SECONDS = 10.0
MAX_UNANSWERED = 3
_FINAL = (ErrorReason.UNAUTHENTICATED, ErrorReason.VERSION_MISMATCH, ErrorReason.INVALID_ARGUMENT)

log = get_logger("session")


class Node(Protocol):
    """What the session tells of, and passes directives to."""

    def hello(self) -> Hello: ...

    def welcomed(self, welcome: Welcome) -> None: ...

    def snapshots(self) -> Sequence[EngineSnapshot]: ...

    def new_log_lines(self) -> Sequence[LogLines]: ...

    @property
    def wants_to_leave(self) -> bool: ...

    def may_leave(self) -> None: ...

    def session_ended(self) -> None: ...

    async def handle(self, response: SessionResponse) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses that double from `first_seconds` to MAX_BACKOFF_SECONDS, each with full jitter."""

    first_seconds: float = 0.1
    randomness: Callable[[], float] = random.random

    def pause_seconds(self, num_failures: int) -> float:
        ceiling = min(MAX_BACKOFF_SECONDS, self.first_seconds * 2.0 ** min(num_failures, 10))
        return ceiling * (0.5 + 0.5 * self.randomness())


class Session:
    """Keeps one session open for as long as the agent lives."""

    def __init__(
        self,
        *,
        coordinators: Sequence[str],
        token: str | None,
        node: Node,
        outbox: Outbox,
        on_first_welcome: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        backoff: Backoff | None = None,
    ) -> None:
        self._coordinators = coordinators
        self._turn = 0
        """Whose it is, of the coordinators; the next one's after each session."""
        self._token = token
        self._node = node
        self._outbox = outbox
        self._on_first_welcome = on_first_welcome
        self._sleep = sleep
        self._backoff = backoff or Backoff()
        self._was_welcomed = False
        self._epoch = 0
        """Of the newest coordinator that has welcomed this agent."""
        self._num_unanswered = 0
        """Heartbeats since the last one that was answered."""
        self._num_failures = 0
        self._num_dropped = 0
        self._writing = asyncio.Lock()  # gRPC allows one write at a time

    async def run(self) -> None:
        """Hold sessions until cancelled.

        Raises:
            PlanariaError: the coordinator refused this agent for good: its token, its version, or
                its name, and had never accepted it before.
        """
        while True:
            try:
                await self._hold_one()
            except Exception as error:  # whatever ends a session, the next one follows
                self._note_end(error)
            self._node.session_ended()
            self._num_failures += 1
            self._turn += 1
            await self._sleep(self._backoff.pause_seconds(self._num_failures))

    @property
    def _coordinator(self) -> str:
        return self._coordinators[self._turn % len(self._coordinators)]

    def _note_end(self, error: Exception) -> None:
        cause = error
        if isinstance(error, grpc.aio.AioRpcError):
            cause = to_planaria_error(error, f"coordinator at {self._coordinator}")
        refused = isinstance(cause, PlanariaError) and cause.reason in _FINAL
        has_tried_all = self._num_failures + 1 >= len(self._coordinators)
        if refused and has_tried_all and not self._was_welcomed:
            raise cause
        if self._num_failures == 0 or refused:
            log.warning("session_lost", coordinator=self._coordinator, cause=str(cause))

    async def _hold_one(self) -> None:
        async with open_channel(self._coordinator, token=self._token) as channel:
            stub = WorkerServiceStub(channel)
            call = stub.Session(metadata=bearer(self._token))
            await call.write(SessionRequest(hello=self._node.hello()))
            async with asyncio.timeout(WELCOME_TIMEOUT_SECONDS):
                first = await call.read()
            if not isinstance(first, SessionResponse) or not first.HasField("welcome"):
                raise await _refusal(call)
            self._welcome(first.welcome)
            self._outbox.send_again()
            self._tell_of_dropped()
            interval = first.welcome.heartbeat_interval.ToTimedelta().total_seconds()
            await until_first_ends(
                self._read(call),
                self._write(call),
                self._beat(call, interval),
                self._pass_on_logs(call, interval),
                self._await_answers(interval),
            )

    def _welcome(self, welcome: Welcome) -> None:
        self._refuse_replaced(welcome.epoch)
        self._epoch = welcome.epoch
        self._num_failures = 0
        self._node.welcomed(welcome)
        log.info("session_opened", coordinator_id=welcome.coordinator_id)
        if not self._was_welcomed:
            self._was_welcomed = True
            self._on_first_welcome()

    def _tell_of_dropped(self) -> None:
        if self._outbox.num_dropped > self._num_dropped:
            self._num_dropped = self._outbox.num_dropped
            log.warning("messages_dropped", total=self._num_dropped)

    async def _read(self, call: "Call") -> None:
        while isinstance(response := await call.read(), SessionResponse):
            if response.HasField("heartbeat_received"):
                self._num_unanswered = 0
                if response.heartbeat_received.may_leave:
                    self._node.may_leave()
                continue
            if response.HasField("echo"):
                await self._send_heartbeat(call)
                continue
            if response.HasField("directive"):
                self._refuse_replaced(response.directive.epoch)
            await self._node.handle(response)
        raise ConnectionError("the coordinator ended the session")

    def _refuse_replaced(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise ConnectionError(
                f"another coordinator has replaced this one: epoch {self._epoch} after {epoch}"
            )

    async def _write(self, call: "Call") -> None:
        while True:
            message = await self._outbox.next()
            await self._send(call, message)
            self._outbox.pop(message)

    async def _beat(self, call: "Call", interval_seconds: float) -> None:
        while True:
            await self._send_heartbeat(call)
            await self._sleep(interval_seconds)

    async def _pass_on_logs(self, call: "Call", interval_seconds: float) -> None:
        """In a thread: a file system that hangs must not keep the node from being heard."""
        while True:
            for lines in await in_thread(self._node.new_log_lines):
                await self._send(call, SessionRequest(log_lines=lines))
            await self._sleep(interval_seconds)

    async def _send_heartbeat(self, call: "Call") -> None:
        beat = Heartbeat(engines=self._node.snapshots(), wants_to_leave=self._node.wants_to_leave)
        await self._send(call, SessionRequest(heartbeat=beat))

    async def _await_answers(self, interval_seconds: float) -> None:
        """End the session with a coordinator whose machine is gone, or that hangs.

        Intervals are counted, not seconds: an agent that was stopped for a while has missed none.
        """
        self._num_unanswered = 0
        while self._num_unanswered < MAX_UNANSWERED:
            await self._sleep(interval_seconds)
            self._num_unanswered += 1
        raise ConnectionError(f"{MAX_UNANSWERED} heartbeats were not answered")

    async def _send(self, call: "Call", message: SessionRequest) -> None:
        async with self._writing:
            await call.write(message)


Call = grpc.aio.StreamStreamCall[SessionRequest, SessionResponse]


async def _refusal(call: Call) -> grpc.aio.AioRpcError:
    """Return what a coordinator that ended the stream without a welcome has answered."""
    return grpc.aio.AioRpcError(
        await call.code(),
        await call.initial_metadata(),
        await call.trailing_metadata(),
        await call.details(),
    )
