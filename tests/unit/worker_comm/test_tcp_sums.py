"""The sums of votes, over real connections of this machine."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from planaria_worker.engine.groups import DataParallelGroup, GroupBroken, Work
from unit.worker_comm.conftest import BOUND_SECONDS, TcpGroups, until_blocked


def wait_for_all(works: list[Work]) -> None:
    for work in works:
        work.wait()


def sum_up(group: DataParallelGroup) -> None:
    group.all_reduce(torch.zeros(4))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("late", [0, 1, -1])
def test_a_sum_has_the_part_of_every_rank(
    tcp: TcpGroups, elsewhere: ThreadPoolExecutor, size: int, late: int
) -> None:
    """Whoever comes last."""
    chain = tcp.sums(size)
    parts = [torch.tensor([10**rank, -rank], dtype=torch.int64) for rank in range(size)]
    total = sum(parts, torch.zeros(2, dtype=torch.int64))
    last = late % size
    waiting = [
        elsewhere.submit(chain[rank].all_reduce, parts[rank])
        for rank in range(size)
        if rank != last
    ]
    for one in waiting:
        until_blocked(one)
    chain[last].all_reduce(parts[last])
    for one in waiting:
        one.result(BOUND_SECONDS)
    assert all(torch.equal(part, total) for part in parts)


def test_sums_come_in_the_order_of_the_calls(tcp: TcpGroups, elsewhere: ThreadPoolExecutor) -> None:
    """Though somebody waits for the second first. Guard: the sum before is waited for."""
    chain = tcp.sums(3)
    sums = [[torch.tensor([rank]), torch.tensor([rank, 10])] for rank in range(3)]
    works = [[group.iall_reduce(t) for t in own] for group, own in zip(chain, sums, strict=True)]
    pending = [elsewhere.submit(wait_for_all, own[::-1]) for own in works]
    for one in pending:
        one.result(BOUND_SECONDS)
    assert [[t.tolist() for t in own] for own in sums] == [[[3], [3, 30]]] * 3
    assert all(work.is_over for own in works for work in own)


@pytest.mark.parametrize("by", [0, 1], ids=["here", "by the neighbour"])
def test_a_shut_ends_every_wait(tcp: TcpGroups, elsewhere: ThreadPoolExecutor, by: int) -> None:
    """Guard: `Neighbour.cut` ends the connections."""
    chain = tcp.sums(2)
    waiting = elsewhere.submit(sum_up, chain[0])
    until_blocked(waiting)
    chain[by].shut("fenced")
    with pytest.raises(GroupBroken, match="fenced" if by == 0 else "neighbour|reset|pipe"):
        waiting.result(BOUND_SECONDS)
    assert chain[0].is_shut


def test_the_end_of_a_rank_goes_along_the_chain(
    tcp: TcpGroups, elsewhere: ThreadPoolExecutor
) -> None:
    """All wait for a sum, and the last rank leaves. Guard: an error shuts the group."""
    chain = tcp.sums(4)
    waiting = [elsewhere.submit(sum_up, group) for group in chain[:3]]
    for one in waiting:
        until_blocked(one)
    chain[3].shut()
    for one in waiting:
        assert isinstance(one.exception(BOUND_SECONDS), GroupBroken)


def test_a_wait_is_bounded(tcp: TcpGroups) -> None:
    chain = tcp.sums(3)
    chain[1]._timeout_seconds = 0.1
    with pytest.raises(GroupBroken, match=r"timed out after 0\.1 s"):
        sum_up(chain[1])
    assert chain[1].is_shut
