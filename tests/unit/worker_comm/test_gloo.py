"""One end of a group of gloo's that is being made; groups that stand are tested on processes."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from planaria_worker.engine.communication.gloo import GlooBackend, GlooConnector

HOST = "127.0.0.1"
BOUND_SECONDS = 30.0
NUM_PAIRS = 20
"""One of two ranks calls the other, by chance: in so many pairs, each is called."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2 * NUM_PAIRS) as running:
        yield running


def open_pair() -> list[GlooConnector]:
    return [
        GlooConnector(
            HOST, rank, 2, timeout_seconds=BOUND_SECONDS, operation_timeout_seconds=BOUND_SECONDS
        )
        for rank in range(2)
    ]


def begin(connector: GlooConnector, addresses: list[str]) -> None:
    connector.begin(addresses, timeout_seconds=BOUND_SECONDS)


def connecting(pool: ThreadPoolExecutor, connector: GlooConnector) -> "Future[GlooBackend]":
    return pool.submit(connector.connect, HashStore(), timeout_seconds=BOUND_SECONDS)


def test_ranks_that_know_all_addresses_need_nothing_else(pool: ThreadPoolExecutor) -> None:
    """No store of another process, and each end finds its connection."""
    pair = open_pair()
    addresses = [connector.address for connector in pair]
    for connector in pair:
        begin(connector, addresses)
    pending = [connecting(pool, connector) for connector in pair]
    backends = [one.result(BOUND_SECONDS) for one in pending]
    assert [len(backend._connections) for backend in backends] == [1, 1]
    for backend in backends:
        backend.cut()


def test_who_waits_for_a_peer_is_not_held(pool: ThreadPoolExecutor) -> None:
    """gloo itself would wait on. Guard: `cut` tells who waits for it."""
    pairs = [open_pair() for _ in range(NUM_PAIRS)]
    for ours, theirs in pairs:
        begin(ours, [ours.address, theirs.address])
    pending = [connecting(pool, ours) for ours, _ in pairs]

    for ours, theirs in pairs:
        ours.cut()
        theirs.cut()

    failures = [str(one.exception(BOUND_SECONDS / 2)) for one in pending]
    for one in pending:
        if one.exception() is None:
            one.result().cut()
    assert "cut while it connected" in failures


def test_a_connector_that_was_cut_before_connects_nothing(pool: ThreadPoolExecutor) -> None:
    ours, theirs = open_pair()
    addresses = [ours.address, theirs.address]
    ours.cut()
    theirs.cut()
    begin(ours, addresses)
    with pytest.raises(RuntimeError, match="cut while it connected"):
        connecting(pool, ours).result(BOUND_SECONDS / 2)


def test_entries_that_are_missing_are_named(pool: ThreadPoolExecutor) -> None:
    """Another version of torch may ask for more than it has set. Guard: gloo would find nothing."""
    ours, theirs = open_pair()
    begin(ours, [ours.address, ours.address])
    with pytest.raises(RuntimeError, match="which no rank has set"):
        connecting(pool, ours).result(BOUND_SECONDS / 2)
    ours.cut()
    theirs.cut()
