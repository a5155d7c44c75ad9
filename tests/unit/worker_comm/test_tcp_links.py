"""The messages of a pipeline, over real connections of this machine."""

import contextlib
import gc
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from planaria_worker.engine.groups import GroupBroken, PipelineLink
from planaria_worker.engine.groups.transport.tcp_connector import TcpConnector
from planaria_worker.engine.groups.transport.tcp_link import TcpLink
from unit.worker_comm.conftest import BOUND_SECONDS, TcpGroups, listen, until, until_blocked

LARGE = 6_000_000
"""Floats: more than the buffers of a connection take."""


def receive(link: PipelineLink, src: int = 1, size: int = 4) -> list[float]:
    received = torch.zeros(size)
    link.recv(received, src)
    return received.tolist()


def send_too_much(link: PipelineLink) -> None:
    link.send(torch.zeros(LARGE), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_messages_come_in_order_and_bit_by_bit(tcp: TcpGroups, dtype: torch.dtype) -> None:
    links = tcp.links(3)
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
def test_a_message_of_another_size_is_none(tcp: TcpGroups, due: int) -> None:
    """Guard: each message says how many bytes it has."""
    links = tcp.links(2)
    for _ in range(2):
        links[0].send(torch.ones(2), 1)
    with pytest.raises(GroupBroken, match=f"of 8 bytes; one of {4 * due} was expected"):
        receive(links[1], 0, due)


def test_receipts_are_filled_in_the_order_of_the_calls(tcp: TcpGroups) -> None:
    links = tcp.links(2)
    first, second = torch.zeros(2), torch.zeros(3)
    works = [links[1].irecv(first, 0), links[1].irecv(second, 0)]
    links[0].send(torch.ones(2), 1)
    links[0].send(torch.full((3,), 2.0), 1)
    for work in reversed(works):
        work.wait()
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2, 2])


def test_whether_a_message_has_come(tcp: TcpGroups) -> None:
    """One for each that was sent, whoever of the neighbours it was; and none when all are read."""
    below, middle, above = tcp.links(3)
    assert not middle.has_message(0)
    for _ in range(2):
        below.send(torch.ones(5), dst=1)
    for _ in range(2):
        until(lambda: middle.has_message(0))
        receive(middle, 0, 5)
    assert not middle.has_message(0)
    above.shut()
    until(lambda: middle.has_message(2))  # who receives it now learns that there will be none
    assert not middle.has_message(0)
    middle.shut()
    assert middle.has_message(0)


def test_two_may_send_more_than_fits_to_each_other(tcp: TcpGroups) -> None:
    """Nobody reads before both have sent: what does not fit leaves in the background, in order.
    Guard: the writer's thread."""
    links = tcp.links(2)
    tensors = [torch.arange(LARGE, dtype=torch.float32), torch.ones(5)]
    works = [link.isend(t, 1 - rank) for rank, link in enumerate(links) for t in tensors]
    for rank, link in enumerate(links):
        for tensor in tensors:
            received = torch.zeros_like(tensor)
            link.recv(received, 1 - rank)
            assert torch.equal(received, tensor)
    for work in works:
        work.wait()


@pytest.mark.parametrize("wait", [receive, send_too_much])
@pytest.mark.parametrize("by", [0, 1], ids=["here", "by the neighbour"])
def test_a_shut_ends_every_wait(
    tcp: TcpGroups, elsewhere: ThreadPoolExecutor, wait: Callable[[PipelineLink], object], by: int
) -> None:
    """Guard: `Neighbour.cut` ends the connections."""
    links = tcp.links(2)
    waiting = elsewhere.submit(wait, links[0])
    until_blocked(waiting)
    links[by].shut("fenced")
    with pytest.raises(GroupBroken, match="fenced" if by == 0 else "neighbour|reset|pipe"):
        waiting.result(BOUND_SECONDS)
    assert links[0].is_shut


def test_a_message_sent_before_the_end_arrives(tcp: TcpGroups) -> None:
    """A peer sends its last message and shuts its end."""
    links = tcp.links(2)
    links[1].send(torch.ones(4), 0)
    links[1].shut()
    assert receive(links[0]) == [1] * 4
    with pytest.raises(GroupBroken, match="the neighbour ended the connection"):
        receive(links[0])


@pytest.mark.parametrize("tensor", [torch.zeros(1), torch.zeros(LARGE)], ids=["small", "large"])
def test_a_shut_group_sends_nothing(tcp: TcpGroups, tensor: Tensor) -> None:
    links = tcp.links(2)
    work = links[0].isend(torch.zeros(LARGE), 1)
    links[0].shut("fenced")
    with pytest.raises(GroupBroken, match="fenced"):
        work.wait()
    with pytest.raises(GroupBroken, match="fenced"):
        links[0].send(tensor, 1)


@pytest.mark.parametrize("start", ["isend", "irecv"])
def test_a_wait_is_bounded(tcp: TcpGroups, start: str) -> None:
    links = tcp.links(2)
    links[0]._timeout_seconds = 0.1
    work = getattr(links[0], start)(torch.zeros(LARGE), 1)
    with pytest.raises(GroupBroken, match=r"timed out after 0\.1 s"):
        work.wait()
    assert links[0].is_shut


def called(connector: TcpConnector[TcpLink]) -> socket.socket:
    """A connection of a stranger."""
    host, _, port = connector.address.partition("/")[0].rpartition(":")
    return socket.create_connection((host, int(port)))


def test_strangers_are_turned_away(tcp: TcpGroups) -> None:
    """Guard: the token."""
    connectors = listen(2)
    with called(connectors[1]) as stranger:
        stranger.sendall(b"0" * 16)
        links = tcp.connect_links(connectors)
        links[0].send(torch.ones(1), 1)
        assert receive(links[1], 0, 1) == [1]
        assert stranger.recv(1) == b""


def test_unknown_callers_delay_no_member(tcp: TcpGroups) -> None:
    """They called first and say nothing, or little, and are more than are heard. Guard: callers are
    heard side by side."""
    connectors = listen(2)
    with contextlib.ExitStack() as strangers:
        for _ in range(40):
            strangers.enter_context(called(connectors[1])).sendall(b"0")
        links = tcp.connect_links(connectors, timeout_seconds=2.0)
    links[0].send(torch.ones(1), 1)
    assert receive(links[1], 0, 1) == [1]


def connecting(
    connector: TcpConnector[TcpLink],
    elsewhere: ThreadPoolExecutor,
    timeout_seconds: float = BOUND_SECONDS,
) -> Future[TcpLink]:
    """It waits for the rank before it."""
    addresses = ["nobody", connector.address]
    return elsewhere.submit(
        connector.connect, HashStore(), 1, addresses, timeout_seconds=timeout_seconds
    )


def test_a_token_may_come_in_pieces(elsewhere: ThreadPoolExecutor) -> None:
    """Guard: `Acceptor` hears on."""
    (connector,) = listen(1)
    waiting = connecting(connector, elsewhere)
    token = connector.address.partition("/")[2]
    with called(connector) as neighbour:
        neighbour.sendall(token[:5].encode())
        until_blocked(waiting)
        neighbour.sendall(token[5:].encode())
        waiting.result(BOUND_SECONDS).cut()


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "in time"])
def test_waiting_for_a_neighbour_ends_on_a_cut_or_the_timeout(
    elsewhere: ThreadPoolExecutor, is_cut: bool
) -> None:
    (connector,) = listen(1)
    waiting = connecting(connector, elsewhere, BOUND_SECONDS if is_cut else 0.2)
    if is_cut:
        until_blocked(waiting)
        connector.cut()
    with pytest.raises(RuntimeError, match="a neighbour did not come"):
        waiting.result(BOUND_SECONDS / 2)


def test_nothing_is_sent_after_a_partial_message(tcp: TcpGroups) -> None:
    """The neighbour would take it for the rest. Guard: the writer ends the connection."""
    links = tcp.connect_links(listen(2, timeout_seconds=0.1))
    work = links[0].isend(torch.zeros(LARGE), 1)
    until(lambda: work.is_over)  # the writer's time is over before anybody reads
    with pytest.raises(GroupBroken, match="the neighbour is lost"):
        links[0].isend(torch.ones(1), 1)
    received = torch.zeros(LARGE)
    with pytest.raises(GroupBroken, match=r"neighbour|reset"):
        links[1].recv(received, 0)
    assert not received.any()


def test_a_closed_link_leaks_nothing(tcp: TcpGroups, elsewhere: ThreadPoolExecutor) -> None:
    """Without a garbage collection, though a thread was blocked in a connection."""

    def num_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.disable()
    try:
        before = num_open()
        links = tcp.links(2)
        waiting = elsewhere.submit(receive, links[0])
        until_blocked(waiting)
        for link in links:
            link.shut()
        assert isinstance(waiting.exception(BOUND_SECONDS), GroupBroken)
        del waiting
        links.clear()
        tcp.built.clear()
        until(lambda: num_open() <= before)
    finally:
        gc.enable()
