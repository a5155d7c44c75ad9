"""The agent's session: which coordinator it holds one with, and when it leaves it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from integration.agent.fake_worker_service import FakeWorkerService, serve
from planaria.api.worker.v1.worker_service_pb2 import Echo, LogLines
from planaria_common.errors import PlanariaError
from planaria_worker.agent.agent import Agent
from planaria_worker.agent.machine import Machine
from planaria_worker.agent.outbox import Outbox
from planaria_worker.agent.session import Session
from planaria_worker.agent.settings import WorkerSettings

pytestmark = pytest.mark.integration

MACHINE = Machine(num_accelerators=1, accelerator_kind="cpu", memory_bytes=2**30, transport="gloo")
REFUSAL = (grpc.StatusCode.UNAUTHENTICATED, "wrong token")

NewSession = Callable[..., Session]


@pytest.fixture
def new_session(tmp_path: Path) -> NewSession:
    """Make the session of an agent that starts no engines, with coordinators on these ports."""

    def make(*ports: int, on_first_welcome: Callable[[], None] = lambda: None) -> Session:
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        settings = WorkerSettings(coordinator=addresses, node_id="node-9", data_dir=tmp_path / "n9")
        outbox = Outbox()
        return Session(
            coordinators=addresses,
            token=None,
            node=Agent(
                settings=settings,
                machine=MACHINE,
                outbox=outbox,
                pid=1,
                launch=lambda *_: pytest.fail("no engine is asked for"),
            ),
            outbox=outbox,
            on_first_welcome=on_first_welcome,
        )

    return make


@asynccontextmanager
async def serving(*coordinators: FakeWorkerService) -> AsyncIterator[list[int]]:
    """Serve each on a port of its own."""
    served = [await serve(coordinator) for coordinator in coordinators]
    try:
        yield [port for _, port in served]
    finally:
        for server, _ in served:
            await server.stop(None)


@asynccontextmanager
async def holding(session: Session) -> AsyncIterator[None]:
    """Hold sessions inside the block."""
    running = asyncio.create_task(session.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_agent_that_is_refused_for_good_ends_with_the_reason(
    new_session: NewSession,
) -> None:
    async with serving(FakeWorkerService(REFUSAL)) as ports:
        with pytest.raises(PlanariaError, match="wrong token"):
            await new_session(*ports).run()


async def test_a_node_whose_logs_cannot_be_read_for_hanging_is_still_heard(
    new_session: NewSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that hangs under engines' logs."""
    goes_on = threading.Event()

    def hang(_agent: Agent) -> list[LogLines]:
        goes_on.wait(60)
        return []

    monkeypatch.setattr(Agent, "new_log_lines", hang)
    coordinator = FakeWorkerService()
    async with serving(coordinator) as ports, holding(new_session(*ports)):
        for _ in range(3):
            await coordinator.next("heartbeat")
        goes_on.set()


async def test_an_agent_that_one_of_two_coordinators_refuses_goes_to_the_other(
    new_session: NewSession,
) -> None:
    right = FakeWorkerService()
    async with serving(FakeWorkerService(REFUSAL), right) as ports, holding(new_session(*ports)):
        await right.hello()


async def test_an_agent_waits_for_a_coordinator_that_is_not_there_yet(
    new_session: NewSession,
) -> None:
    server, port = await serve(FakeWorkerService())
    await server.stop(None)
    welcomed = asyncio.Event()
    async with holding(new_session(port, on_first_welcome=welcomed.set)):
        await asyncio.sleep(0.3)
        server, _ = await serve(FakeWorkerService(), port)
        await asyncio.wait_for(welcomed.wait(), 30)
    await server.stop(None)


async def test_an_agent_leaves_a_coordinator_that_does_not_answer(new_session: NewSession) -> None:
    """Its machine is gone, or it hangs: no connection ends, and the next one is tried."""
    silent, other = FakeWorkerService(), FakeWorkerService()
    silent.answers = False
    async with serving(silent, other) as ports, holding(new_session(*ports)):
        await silent.hello()
        await other.hello()
        for _ in range(5):
            await other.next("heartbeat")
        assert other.hellos.empty()  # it stays with the one that answers


async def test_an_echo_is_answered_at_once(new_session: NewSession) -> None:
    """A session that would beat once in an hour beats when it is asked to."""
    coordinator = FakeWorkerService()
    coordinator.heartbeat_interval_seconds = 3600
    async with serving(coordinator) as ports, holding(new_session(*ports)):
        await coordinator.hello()
        await coordinator.next("heartbeat")
        await coordinator.ask(echo=Echo())
        await coordinator.next("heartbeat")


async def test_an_agent_leaves_a_coordinator_that_was_replaced(new_session: NewSession) -> None:
    """An earlier epoch than the newest that it has heard of: its directives mean nothing."""
    new, old = FakeWorkerService(epoch=2), FakeWorkerService(epoch=1)
    async with serving(new, old) as ports, holding(new_session(*ports)):
        await new.hello()
        new.cut()
        await old.hello()
        await new.hello()  # back at once, without a word to the old one
        assert old.messages.empty()
