"""The engine's end of the link: always answers, keeps what was not delivered, and has a lease."""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineCommand, EngineEvent, Lease
from planaria.api.worker.v1.report_pb2 import DirectiveResult, EngineSnapshot
from planaria_worker.engine.process.control import Control
from planaria_worker.link import encode, socket_address
from support.engines.link import LinkEnd

TIMEOUT_SECONDS = 30.0


class Agent:
    """A connection to the control thread under test."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_SECONDS)
        with socket_address(path) as address:
            self.socket.connect(address)
        self._link = LinkEnd(self.socket, EngineEvent)
        self.send, self.receive = self._link.send, self._link.receive

    def next_event(self) -> EngineEvent:
        while (event := self.receive()) is not None:
            if not event.HasField("snapshot"):
                return event
        raise AssertionError("the link was closed")


OpenAgent = Callable[[Path], Agent]


class Engine:
    """A control thread with nothing behind it."""

    def __init__(self, path: Path, lease_seconds: float = 600.0) -> None:
        self.path = path
        self.directives: list[Directive] = []
        self.told = threading.Condition()
        self.expired = threading.Event()
        self.is_over: list[bool] = []
        self.progress = 0
        self.control = Control(
            path,
            lease_seconds=lease_seconds,
            snapshot=lambda: EngineSnapshot(progress=self.progress),
            on_directive=self._obey,
            on_lease_expired=self._expire,
        )
        self.control.start()

    def post(self, number: int) -> None:
        result = DirectiveResult(directive_id=str(number))
        self.control.post(EngineEvent(result=result))

    def _expire(self, is_over: bool) -> float:
        self.expired.set()
        self.is_over.append(is_over)
        return 0.0 if not is_over else math.inf

    def _obey(self, directive: Directive) -> None:
        with self.told:
            self.directives.append(directive)
            self.told.notify_all()
        if directive.directive_id == "broken":
            raise RuntimeError("a defect")


@pytest.fixture
def open_agent() -> Iterator[OpenAgent]:
    with contextlib.ExitStack() as stack:

        def open_agent(path: Path) -> Agent:
            agent = Agent(path)
            stack.callback(agent.socket.close)
            return agent

        yield open_agent


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "engine.sock")
    yield engine
    engine.control.close()


def test_a_snapshot_comes_before_what_was_waiting(engine: Engine, open_agent: OpenAgent) -> None:
    for number in range(3):
        engine.post(number)
    agent = open_agent(engine.path)
    first = agent.receive()
    assert first is not None
    assert first.HasField("snapshot")
    assert [agent.next_event().result.directive_id for _ in range(3)] == ["0", "1", "2"]


def test_changes_are_reported_at_once(engine: Engine, open_agent: OpenAgent) -> None:
    agent = open_agent(engine.path)
    assert agent.receive() is not None
    engine.progress = 7
    engine.control.send_snapshot()
    assert agent.receive() == EngineEvent(snapshot=EngineSnapshot(progress=7))
    assert agent.receive() == EngineEvent(snapshot=EngineSnapshot(progress=7))


def test_a_newer_connection_replaces_the_older(engine: Engine, open_agent: OpenAgent) -> None:
    old = open_agent(engine.path)
    assert old.receive() is not None
    new = open_agent(engine.path)
    assert new.receive() is not None
    while old.receive() is not None:
        pass
    engine.post(1)
    assert new.next_event().result.directive_id == "1"


def test_events_wait_while_the_agent_is_away(engine: Engine, open_agent: OpenAgent) -> None:
    agent = open_agent(engine.path)
    assert agent.receive() is not None
    agent.socket.close()
    for number in range(3):
        engine.post(number)
    again = open_agent(engine.path)
    received = [again.next_event().result.directive_id]
    while received[-1] != "2":
        received.append(again.next_event().result.directive_id)
    assert received == ["0", "1", "2"][-len(received) :]  # the first may lie in the old socket


def test_reports_come_to_each_agent_until_they_are_stored(
    engine: Engine, open_agent: OpenAgent
) -> None:
    """Guard: `send_again` for a new connection.."""
    for step in range(3):
        event = EngineEvent()
        event.step_report.record.step = step
        engine.control.report(event)
    engine.post(7)
    agent = open_agent(engine.path)
    told = [agent.next_event() for _ in range(4)]
    assert [event.report_number for event in told] == [1, 2, 3, 0]
    agent.send(EngineCommand(reports_stored=2))
    agent.send(EngineCommand(directive=Directive(directive_id="behind it")))
    with engine.told:
        assert engine.told.wait_for(lambda: engine.directives, TIMEOUT_SECONDS)
    again = open_agent(engine.path)
    engine.post(8)
    assert again.next_event() == told[2]
    assert again.next_event().result.directive_id == "8"


def test_an_agent_that_does_not_read_stops_nothing(engine: Engine, open_agent: OpenAgent) -> None:
    deaf = open_agent(engine.path)
    large = DirectiveResult(directive_id="large")
    large.failure.message = "x" * (8 << 20)
    engine.control.post(EngineEvent(result=large))
    deaf.send(EngineCommand(directive=Directive(directive_id="heard")))
    with engine.told:
        assert engine.told.wait_for(lambda: engine.directives, TIMEOUT_SECONDS)
    again = open_agent(engine.path)
    assert again.next_event().result == large


def test_a_defect_does_not_end_the_thread(engine: Engine, open_agent: OpenAgent) -> None:
    agent = open_agent(engine.path)
    agent.send(EngineCommand(directive=Directive(directive_id="broken")))
    while agent.receive() is not None:
        pass
    again = open_agent(engine.path)
    again.send(EngineCommand(directive=Directive(directive_id="next")))
    with engine.told:
        assert engine.told.wait_for(lambda: len(engine.directives) == 2, TIMEOUT_SECONDS)


def test_a_connection_with_another_protocol_is_closed(
    engine: Engine, open_agent: OpenAgent
) -> None:
    stranger = open_agent(engine.path)
    stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    while stranger.receive() is not None:
        pass


def test_an_engine_ends_only_after_its_agent_has_read_everything(
    engine: Engine, open_agent: OpenAgent
) -> None:
    """A command that comes meanwhile must not fail: the agent would drop what it has yet to read.

    Guard: `_has_left`.
    """
    engine.post(1)
    assert not engine.control.take_leave(0.01)
    agent = open_agent(engine.path)
    assert not engine.control.take_leave(0.2)
    agent.send(EngineCommand(directive=Directive(directive_id="late")))
    with engine.told:
        assert engine.told.wait_for(lambda: engine.directives, TIMEOUT_SECONDS)
    engine.post(2)  # nobody hears it any more
    assert agent.next_event().result.directive_id == "1"
    assert agent.receive() is None
    agent.socket.close()
    assert engine.control.take_leave(TIMEOUT_SECONDS)


def test_an_engine_with_nothing_to_report_ends_at_once(engine: Engine) -> None:
    assert engine.control.take_leave(TIMEOUT_SECONDS)


def test_the_lease_ends_unless_it_is_renewed(tmp_path: Path, open_agent: OpenAgent) -> None:
    engine = Engine(tmp_path / "engine.sock")
    agent = open_agent(engine.path)
    long, short = Duration(seconds=500), Duration(nanos=1)
    agent.socket.sendall(encode(EngineCommand(lease=Lease(duration=long))))
    assert agent.receive() is not None
    assert not engine.expired.is_set()
    agent.socket.sendall(encode(EngineCommand(lease=Lease(duration=short))))
    assert engine.expired.wait(TIMEOUT_SECONDS)
    engine.control.close()


def test_a_lease_that_is_over_is_followed_by_a_longer_time(
    tmp_path: Path, open_agent: OpenAgent
) -> None:
    """An agent that comes meanwhile begins it again."""
    engine = Engine(tmp_path / "engine.sock")
    agent = open_agent(engine.path)
    for _ in range(2):
        engine.is_over.clear()
        agent.socket.sendall(encode(EngineCommand(lease=Lease(duration=Duration(nanos=1)))))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(engine.is_over) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert engine.is_over == [False, True]
    engine.control.close()


def test_an_engine_without_an_agent_ends_with_its_first_lease(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "engine.sock", lease_seconds=0.0)
    assert engine.expired.wait(TIMEOUT_SECONDS)
    engine.control.close()
