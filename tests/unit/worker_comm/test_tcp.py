"""A pipeline's messages and the exchange's sums, over real connections of this machine."""

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from planaria_worker.engine.groups import (
    DataParallelGroup,
    GroupBroken,
    GroupKind,
    GroupSpec,
    PipelineLink,
    Work,
)
from planaria_worker.engine.groups.transport.tcp_all_reduce import TcpAllReduce
from planaria_worker.engine.groups.transport.tcp_connector import TcpConnector
from planaria_worker.engine.groups.transport.tcp_link import TcpLink

HOST = "127.0.0.1"
BOUND_SECONDS = 30.0
B = TypeVar("B")

LARGE = 6_000_000
"""Floats: more than the buffers of a connection take."""

Links = list[PipelineLink]
BuildLinks = Callable[[int], Links]
Chain = list[DataParallelGroup]
BuildChain = Callable[[int], Chain]


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """The threads of other ranks."""
    with ThreadPoolExecutor() as pool:
        yield pool


def listen(size: int, timeout_seconds: float = BOUND_SECONDS) -> list[TcpConnector[TcpLink]]:
    return [TcpConnector(HOST, timeout_seconds, TcpLink) for _ in range(size)]


def connect(
    pool: ThreadPoolExecutor,
    connectors: list[TcpConnector[B]],
    *,
    timeout_seconds: float = BOUND_SECONDS,
) -> list[B]:
    addresses = [connector.address for connector in connectors]
    pending = [
        pool.submit(
            connector.connect, HashStore(), rank, addresses, timeout_seconds=timeout_seconds
        )
        for rank, connector in enumerate(connectors)
    ]
    return [one.result() for one in pending]


def connect_links(
    pool: ThreadPoolExecutor,
    connectors: list[TcpConnector[TcpLink]],
    *,
    timeout_seconds: float = BOUND_SECONDS,
) -> Links:
    members = tuple(map(str, range(len(connectors))))
    spec = GroupSpec(name="link", kind=GroupKind.ACTIVATIONS, members=members)
    return [
        PipelineLink(
            group_id="1/link",
            spec=spec,
            rank=rank,
            backend=backend,
            timeout_seconds=BOUND_SECONDS,
        )
        for rank, backend in enumerate(connect(pool, connectors, timeout_seconds=timeout_seconds))
    ]


@pytest.fixture
def build_links(elsewhere: ThreadPoolExecutor) -> Iterator[BuildLinks]:
    built: Links = []

    def build(size: int) -> Links:
        links = connect_links(elsewhere, listen(size))
        built.extend(links)
        return links

    yield build
    for link in built:
        link.shut()


@pytest.fixture
def build_chain(elsewhere: ThreadPoolExecutor) -> Iterator[BuildChain]:
    built: Chain = []

    def build(size: int) -> Chain:
        connectors = [TcpConnector(HOST, BOUND_SECONDS, TcpAllReduce) for _ in range(size)]
        members = tuple(map(str, range(size)))
        spec = GroupSpec(name="votes", kind=GroupKind.VOTE_SUM, members=members)
        chain = [
            DataParallelGroup(
                group_id="1/votes",
                spec=spec,
                rank=rank,
                backend=backend,
                timeout_seconds=BOUND_SECONDS,
            )
            for rank, backend in enumerate(connect(elsewhere, connectors))
        ]
        built.extend(chain)
        return chain

    yield build
    for group in built:
        group.shut()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def until_blocked(future: Future[Any]) -> None:
    """Lets a thread that has begun come to where it waits, if it is not there yet."""
    assert not future.done()
    threading.Event().wait(0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_messages_come_in_order_and_bit_by_bit(build_links: BuildLinks, dtype: torch.dtype) -> None:
    links = build_links(3)
    sent = [torch.randn(2, 3).mul(100).to(dtype), torch.tensor(7).to(dtype), torch.zeros(0, 4)]
    for tensor in sent:
        links[1].send(tensor, 2)
        links[1].send(tensor, 0)
    for receiver in (links[0], links[2]):
        for tensor in sent:
            received = torch.empty_like(tensor)
            receiver.recv(received, 1)
            assert torch.equal(received, tensor)


@pytest.mark.parametrize("due", [1, 3])
def test_a_message_of_another_size_is_none(build_links: BuildLinks, due: int) -> None:
    """Guard: each message says how many bytes it has."""
    links = build_links(2)
    for _ in range(2):
        links[0].send(torch.ones(2), 1)
    with pytest.raises(GroupBroken, match=f"of 8 bytes; one of {4 * due} was expected"):
        links[1].recv(torch.zeros(due), 0)


def test_receipts_are_filled_in_the_order_of_the_calls(build_links: BuildLinks) -> None:
    links = build_links(2)
    first, second = torch.zeros(2), torch.zeros(3)
    works = [links[1].irecv(first, 0), links[1].irecv(second, 0)]
    links[0].send(torch.ones(2), 1)
    links[0].send(torch.full((3,), 2.0), 1)
    for work in reversed(works):
        work.wait()
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2, 2])


def test_whether_a_message_has_come(build_links: BuildLinks) -> None:
    """One for each that was sent, whoever of the neighbours it was; and none when all are read."""
    below, middle, above = build_links(3)
    assert not middle.has_message(0)
    for _ in range(2):
        below.send(torch.ones(5), dst=1)
    for _ in range(2):
        until(lambda: middle.has_message(0))
        middle.recv(torch.empty(5), src=0)
    assert not middle.has_message(0)
    above.shut()
    until(lambda: middle.has_message(2))  # who receives it now learns that there will be none
    assert not middle.has_message(0)
    middle.shut()
    assert middle.has_message(0)


def test_two_may_send_more_than_fits_to_each_other(build_links: BuildLinks) -> None:
    """Nobody reads before both have sent: what does not fit leaves in the background, in order.
    Guard: the writer's thread."""
    links = build_links(2)
    tensors = [torch.arange(LARGE, dtype=torch.float32), torch.ones(5)]
    works = [group.isend(t, 1 - rank) for rank, group in enumerate(links) for t in tensors]
    for rank, group in enumerate(links):
        for tensor in tensors:
            received = torch.zeros_like(tensor)
            group.recv(received, 1 - rank)
            assert torch.equal(received, tensor)
    for work in works:
        work.wait()


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("late", [0, 1, -1])
def test_a_sum_has_the_part_of_every_rank(
    build_chain: BuildChain, elsewhere: ThreadPoolExecutor, size: int, late: int
) -> None:
    """Whoever comes last."""
    chain = build_chain(size)
    parts = [torch.tensor([10**rank, -rank], dtype=torch.int64) for rank in range(size)]
    total = sum(parts, torch.zeros(2, dtype=torch.int64))
    last = late % size
    waiting = {
        rank: elsewhere.submit(chain[rank].all_reduce, parts[rank])
        for rank in range(size)
        if rank != last
    }
    for one in waiting.values():
        until_blocked(one)
    chain[last].all_reduce(parts[last])
    for one in waiting.values():
        one.result(BOUND_SECONDS)
    assert all(torch.equal(part, total) for part in parts)


def wait_for_all(works: list[Work]) -> None:
    for work in works:
        work.wait()


def test_sums_come_in_the_order_of_the_calls(
    build_chain: BuildChain, elsewhere: ThreadPoolExecutor
) -> None:
    """Though somebody waits for the second first. Guard: the sum before is waited for."""
    chain = build_chain(3)
    sums = [[torch.tensor([rank]), torch.tensor([rank, 10])] for rank in range(3)]
    works = [[group.iall_reduce(t) for t in own] for group, own in zip(chain, sums, strict=True)]
    pending = [elsewhere.submit(wait_for_all, own[::-1]) for own in works]
    for one in pending:
        one.result(BOUND_SECONDS)
    assert [[t.tolist() for t in own] for own in sums] == [[[3], [3, 30]]] * 3
    assert all(work.is_over for own in works for work in own)


def receive(group: PipelineLink) -> None:
    group.recv(torch.zeros(4), 1)


def send_too_much(group: PipelineLink) -> None:
    group.send(torch.zeros(LARGE), 1)


def sum_up(group: DataParallelGroup) -> None:
    group.all_reduce(torch.zeros(4))


@pytest.mark.parametrize("wait", [receive, send_too_much, sum_up])
@pytest.mark.parametrize("by", [0, 1], ids=["here", "by the neighbour"])
def test_a_shut_ends_every_wait(
    build_links: BuildLinks,
    build_chain: BuildChain,
    elsewhere: ThreadPoolExecutor,
    wait: Callable[[PipelineLink | DataParallelGroup], None],
    by: int,
) -> None:
    """Guard: `Neighbour.cut` ends the connections."""
    groups = build_chain(2) if wait is sum_up else build_links(2)
    waiting = elsewhere.submit(wait, groups[0])
    until_blocked(waiting)
    groups[by].shut("fenced")
    with pytest.raises(GroupBroken, match="fenced" if by == 0 else "neighbour|reset|pipe"):
        waiting.result(BOUND_SECONDS)
    assert groups[0].is_shut


def test_the_end_of_a_rank_goes_along_the_chain(
    build_chain: BuildChain, elsewhere: ThreadPoolExecutor
) -> None:
    """All wait for a sum, and the last rank leaves. Guard: an error shuts the group."""
    chain = build_chain(4)
    waiting = [elsewhere.submit(sum_up, group) for group in chain[:3]]
    for one in waiting:
        until_blocked(one)
    chain[3].shut()
    for one in waiting:
        assert isinstance(one.exception(BOUND_SECONDS), GroupBroken)


def test_a_message_sent_before_the_end_arrives(build_links: BuildLinks) -> None:
    """A peer sends its last message and shuts its end."""
    links = build_links(2)
    links[1].send(torch.ones(4), 0)
    links[1].shut()
    received = torch.zeros(4)
    links[0].recv(received, 1)
    assert received.tolist() == [1] * 4
    with pytest.raises(GroupBroken, match="the neighbour ended the connection"):
        links[0].recv(received, 1)


@pytest.mark.parametrize("tensor", [torch.zeros(1), torch.zeros(LARGE)], ids=["small", "large"])
def test_a_shut_group_sends_nothing(build_links: BuildLinks, tensor: Tensor) -> None:
    links = build_links(2)
    work = links[0].isend(torch.zeros(LARGE), 1)
    links[0].shut("fenced")
    with pytest.raises(GroupBroken, match="fenced"):
        work.wait()
    with pytest.raises(GroupBroken, match="fenced"):
        links[0].send(tensor, 1)


@pytest.mark.parametrize("start", ["isend", "irecv"])
def test_a_wait_is_bounded(build_links: BuildLinks, start: str) -> None:
    links = build_links(2)
    links[0]._timeout_seconds = 0.1
    work = getattr(links[0], start)(torch.zeros(LARGE), 1)
    with pytest.raises(GroupBroken, match=r"timed out after 0\.1 s"):
        work.wait()
    assert links[0].is_shut


def test_a_wait_for_a_sum_is_bounded(build_chain: BuildChain) -> None:
    chain = build_chain(3)
    chain[1]._timeout_seconds = 0.1
    with pytest.raises(GroupBroken, match=r"timed out after 0\.1 s"):
        chain[1].all_reduce(torch.zeros(4))
    assert chain[1].is_shut


def called(connector: TcpConnector[TcpLink]) -> socket.socket:
    """A connection of a stranger."""
    host, _, port = connector.address.partition("/")[0].rpartition(":")
    return socket.create_connection((host, int(port)))


def test_strangers_are_turned_away(elsewhere: ThreadPoolExecutor) -> None:
    """Guard: the token."""
    connectors = listen(2)
    with called(connectors[1]) as stranger:
        stranger.sendall(b"0" * 16)
        links = connect_links(elsewhere, connectors)
        links[0].send(torch.ones(1), 1)
        received = torch.zeros(1)
        links[1].recv(received, 0)
        assert received.tolist() == [1]
        assert stranger.recv(1) == b""
    for group in links:
        group.shut()


def test_unknown_callers_delay_no_member(elsewhere: ThreadPoolExecutor) -> None:
    """They called first and say nothing, or little, and are more than are heard. Guard: callers are
    heard side by side."""
    connectors = listen(2)
    with contextlib.ExitStack() as strangers:
        for _ in range(40):
            strangers.enter_context(called(connectors[1])).sendall(b"0")
        links = connect_links(elsewhere, connectors, timeout_seconds=2.0)
    links[0].send(torch.ones(1), 1)
    received = torch.zeros(1)
    links[1].recv(received, 0)
    assert received.tolist() == [1]
    for group in links:
        group.shut()


def test_a_token_may_come_in_pieces(elsewhere: ThreadPoolExecutor) -> None:
    """Guard: `Acceptor` hears on."""
    (connector,) = listen(1)
    waiting = elsewhere.submit(
        connector.connect,
        HashStore(),
        1,
        ["nobody", connector.address],
        timeout_seconds=BOUND_SECONDS,
    )
    token = connector.address.partition("/")[2]
    with called(connector) as neighbour:
        neighbour.sendall(token[:5].encode())
        until_blocked(waiting)
        neighbour.sendall(token[5:].encode())
        waiting.result(BOUND_SECONDS).cut()


def test_nothing_is_sent_after_a_partial_message(elsewhere: ThreadPoolExecutor) -> None:
    """The neighbour would take it for the rest. Guard: the writer ends the connection."""
    links = connect_links(elsewhere, listen(2, timeout_seconds=0.1))
    work = links[0].isend(torch.zeros(LARGE), 1)
    until_over = threading.Event()
    while not work.is_over:  # the writer's time is over before anybody reads
        until_over.wait(0.01)
    with pytest.raises(GroupBroken, match="the neighbour is lost"):
        links[0].isend(torch.ones(1), 1)
    received = torch.zeros(LARGE)
    with pytest.raises(GroupBroken, match=r"neighbour|reset"):
        links[1].recv(received, 0)
    assert not received.any()


@pytest.mark.parametrize("is_told", [True, False], ids=["cut", "in time"])
def test_waiting_for_a_neighbour_ends_on_a_cut_or_the_timeout(
    elsewhere: ThreadPoolExecutor, is_told: bool
) -> None:
    (connector,) = listen(1)
    waiting = elsewhere.submit(
        connector.connect,
        HashStore(),
        1,
        ["nobody", connector.address],
        timeout_seconds=BOUND_SECONDS if is_told else 0.2,
    )
    if is_told:
        until_blocked(waiting)
        connector.cut()
    with pytest.raises(RuntimeError, match="a neighbour did not come"):
        waiting.result(BOUND_SECONDS / 2)


def test_a_closed_link_leaks_nothing(
    build_links: BuildLinks, elsewhere: ThreadPoolExecutor
) -> None:
    """Without a garbage collection, though a thread was blocked in a connection."""
    gc.disable()
    try:
        before = len(list(Path("/proc/self/fd").iterdir()))
        links = connect_links(elsewhere, listen(2))
        waiting = elsewhere.submit(receive, links[0])
        until_blocked(waiting)
        for group in links:
            group.shut()
        assert isinstance(waiting.exception(BOUND_SECONDS), GroupBroken)
        del waiting
        links.clear()
        deadline = threading.Event()
        for _ in range(200):
            if len(list(Path("/proc/self/fd").iterdir())) <= before:
                break
            deadline.wait(0.05)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
    finally:
        gc.enable()
