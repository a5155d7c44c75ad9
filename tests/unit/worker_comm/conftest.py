"""Groups over real connections of this machine."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from torch._C._distributed_c10d import HashStore

from planaria_worker.engine.groups import DataParallelGroup, GroupKind, GroupSpec, PipelineLink
from planaria_worker.engine.groups.transport.tcp_all_reduce import TcpAllReduce
from planaria_worker.engine.groups.transport.tcp_connector import TcpConnector
from planaria_worker.engine.groups.transport.tcp_link import TcpLink

HOST = "127.0.0.1"
BOUND_SECONDS = 30.0
GroupT = TypeVar("GroupT", PipelineLink, DataParallelGroup)


def listen(size: int, timeout_seconds: float = BOUND_SECONDS) -> list[TcpConnector[TcpLink]]:
    return [TcpConnector(HOST, timeout_seconds, TcpLink) for _ in range(size)]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def until_blocked(future: Future[Any]) -> None:
    """Lets a thread that has begun come to where it waits, if it is not there yet."""
    assert not future.done()
    threading.Event().wait(0.05)


class TcpGroups:
    """Builds groups, all ranks of which are in this process, and shuts them."""

    def __init__(self, elsewhere: ThreadPoolExecutor) -> None:
        self._elsewhere = elsewhere
        self.built: list[PipelineLink | DataParallelGroup] = []

    def links(self, size: int) -> list[PipelineLink]:
        return self.connect_links(listen(size))

    def connect_links(
        self, connectors: Sequence[TcpConnector[TcpLink]], *, timeout_seconds: float = BOUND_SECONDS
    ) -> list[PipelineLink]:
        return self._connect(PipelineLink, GroupKind.ACTIVATIONS, connectors, timeout_seconds)

    def sums(self, size: int) -> list[DataParallelGroup]:
        connectors = [TcpConnector(HOST, BOUND_SECONDS, TcpAllReduce) for _ in range(size)]
        return self._connect(DataParallelGroup, GroupKind.VOTE_SUM, connectors, BOUND_SECONDS)

    def _connect(
        self,
        group: type[GroupT],
        kind: GroupKind,
        connectors: Sequence[TcpConnector[Any]],
        timeout_seconds: float,
    ) -> list[GroupT]:
        addresses = [connector.address for connector in connectors]
        spec = GroupSpec(name="g", kind=kind, members=tuple(map(str, range(len(connectors)))))
        connecting = [
            self._elsewhere.submit(
                connector.connect, HashStore(), rank, addresses, timeout_seconds=timeout_seconds
            )
            for rank, connector in enumerate(connectors)
        ]
        built = [
            group(
                group_id="1/g",
                spec=spec,
                rank=rank,
                backend=one.result(),
                timeout_seconds=BOUND_SECONDS,
            )
            for rank, one in enumerate(connecting)
        ]
        self.built += built
        return built


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """The threads of other ranks."""
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def tcp(elsewhere: ThreadPoolExecutor) -> Iterator[TcpGroups]:
    groups = TcpGroups(elsewhere)
    yield groups
    for group in groups.built:
        group.shut()
