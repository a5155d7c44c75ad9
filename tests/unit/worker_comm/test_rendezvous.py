"""The rendezvous store: reachable where it is told to be, and never waited for without end."""

import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.common.ports import free_port
from planaria_common.errors import UnavailableError
from planaria_worker.addresses import parse_address
from planaria_worker.engine.groups.group import GroupBroken
from planaria_worker.engine.groups.rendezvous import Rendezvous, StoreServer
from planaria_worker.engine.groups.transport.sockets import listening_addresses

HOST = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[StoreServer]:
    running = StoreServer(HOST)
    yield running
    running.close()


def connect(server: StoreServer, prefix: str = "job/1/") -> Rendezvous:
    return Rendezvous.connect(server.address, prefix, timeout_seconds=30)


def gather(rendezvous: Rendezvous, *keys: str, seconds: float = 30.0) -> dict[str, str]:
    deadline = time.monotonic() + seconds
    return dict(rendezvous.gather(keys, deadline=deadline, interrupted=threading.Event()))


def test_the_store_listens_only_on_its_address() -> None:
    """Not on every interface, as TCPStore does by itself: it asks nobody for a secret."""
    before = listening_addresses()
    server = StoreServer(HOST)
    assert listening_addresses() - before == {parse_address(server.address)}
    server.close()
    assert listening_addresses() == before


def test_members_find_what_others_published(server: StoreServer) -> None:
    first, second = connect(server), connect(server)
    waiting: list[dict[str, str]] = []
    thread = threading.Thread(target=lambda: waiting.append(gather(first, "a", "b")))
    thread.start()
    second.publish("a", "1")
    second.publish("b", "2")
    thread.join()
    assert waiting == [{"a": "1", "b": "2"}]


def test_generations_do_not_meet(server: StoreServer) -> None:
    """Guard: the prefix [4]."""
    connect(server, "job/1/").publish("a", "old")
    newer = connect(server, "job/2/")
    assert gather(newer, "a", seconds=0) == {}
    newer.publish("a", "new")
    assert gather(newer, "a") == {"a": "new"}


def test_after_the_deadline_the_members_that_came_are_known(server: StoreServer) -> None:
    rendezvous = connect(server)
    rendezvous.publish("a", "1")
    assert gather(rendezvous, "a", "b", seconds=0) == {"a": "1"}


def test_waiting_can_be_interrupted(server: StoreServer) -> None:
    interrupted = threading.Event()
    interrupted.set()
    with pytest.raises(GroupBroken):
        connect(server).gather(["a"], deadline=float("inf"), interrupted=interrupted)


def test_a_refused_connection_is_reported_at_once() -> None:
    address = f"{HOST}:{free_port()}"
    with pytest.raises(UnavailableError, match=f"no answer from {address}"):
        Rendezvous.connect(address, "job/1/", timeout_seconds=1e6)
