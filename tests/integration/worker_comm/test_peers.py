"""Copies and the watch over peers, when the process at the other end is killed or stopped."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from integration.worker_comm.bounds import BOUND_SECONDS
from integration.worker_comm.conftest import StartRanks
from integration.worker_comm.member import large_layer
from planaria_worker.engine.failpoints import Action, Failpoint, Failpoints
from planaria_worker.engine.layers.copy import CopyInterrupted, LayerFetcher
from planaria_worker.engine.recovery.failure_detector import FailureDetector
from unit.worker_comm.layers import SECRET, same

pytestmark = pytest.mark.integration

VERSION = 3


def in_the_middle(action: Action) -> tuple[Failpoint, ...]:
    return (Failpoint(at="serve_copy", action=action, step=VERSION),)


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_a_source_that_fails_in_the_middle_is_replaced(
    start_ranks: StartRanks, action: Action
) -> None:
    """Guard for "stop": the stall timeout."""
    ranks = start_ranks(2)
    failing = ranks[0].do("serve", version=VERSION, failpoints=in_the_middle(action))
    other = ranks[1].do("serve", version=VERSION)
    fetcher = LayerFetcher(job_secret=SECRET, failpoints=Failpoints(), stall_timeout_seconds=1.0)

    layers = fetcher.fetch_all({0: [failing, other], 1: [failing, other]}, VERSION)

    for fetched in layers.values():
        assert same(fetched, large_layer())
    assert ranks[1].do("served") == [0, 1]


def test_a_fence_interrupts_a_copy_from_a_stopped_source(start_ranks: StartRanks) -> None:
    """Guard: `interrupt` answers, though the source would hold the copy for a minute."""
    ranks = start_ranks(1)
    address = ranks[0].do("serve", version=VERSION, failpoints=in_the_middle("stop"))
    fetcher = LayerFetcher(job_secret=SECRET, failpoints=Failpoints(), stall_timeout_seconds=60.0)
    outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def fetch() -> None:
        try:
            outcome.put(fetcher.fetch_all({0: [address]}, VERSION))
        except CopyInterrupted as error:
            outcome.put(error)

    threading.Thread(target=fetch, daemon=True).start()
    ranks[0].wait_until_stopped()
    fetcher.interrupt()

    assert isinstance(outcome.get(timeout=BOUND_SECONDS), CopyInterrupted)


@pytest.fixture
def lost() -> "queue.SimpleQueue[str]":
    return queue.SimpleQueue()


@pytest.fixture
def watch(lost: "queue.SimpleQueue[str]") -> Iterator[FailureDetector]:
    with contextlib.closing(
        FailureDetector(
            job_secret=SECRET, on_failure=lambda failure: lost.put(failure.peer_engine_id)
        )
    ) as running:
        yield running


def test_only_killed_peers_are_reported(
    start_ranks: StartRanks, watch: FailureDetector, lost: "queue.SimpleQueue[str]"
) -> None:
    """One leaves in order, one is stopped, one killed: only the last is lost; then the stopped one,
    when it is killed too."""
    ranks = start_ranks(3)
    addresses = {rank.engine_id: rank.do("serve", version=VERSION) for rank in ranks}
    watch.watch(addresses)
    for rank in ranks:
        rank.do("wait_until_watched")

    ranks[1].stop()
    ranks[0].do("leave")
    ranks[2].kill()
    assert lost.get(timeout=BOUND_SECONDS) == "2"
    ranks[1].kill()
    assert lost.get(timeout=BOUND_SECONDS) == "1"
    assert lost.empty()
