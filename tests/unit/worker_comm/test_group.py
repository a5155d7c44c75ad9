"""A group ends for everybody who uses it, even where the library underneath notices nothing."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch

from planaria_worker.engine.groups import DataParallelGroup, GroupBroken, GroupKind, GroupSpec, Work
from planaria_worker.engine.groups.transport.backends import AllReduceBackend
from planaria_worker.engine.groups.transport.gloo import GlooBackend
from planaria_worker.engine.groups.transport.host_memory import HostMemoryAllReduce

BOUND_SECONDS = 30.0


class FakeWork:
    """What gloo gives for an operation; ends when the test says so."""

    def __init__(self) -> None:
        self.has_ended = threading.Event()
        self.failure: str | None = None
        self.is_waited_for = threading.Event()

    def end(self, failure: str | None = None) -> None:
        self.failure = failure
        self.has_ended.set()

    def wait(self, timeout: timedelta) -> bool:
        self.is_waited_for.set()
        if not self.has_ended.wait(timeout.total_seconds()):
            raise RuntimeError("Timed out")
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return True

    def is_completed(self) -> bool:
        return self.has_ended.is_set()


class FakeProcessGroup:
    """Records who drops it; `launch` is called when an operation starts."""

    def __init__(self) -> None:
        self.works: list[FakeWork] = []
        self.launch: Callable[[], None] = lambda: None
        self.dropped_by: list[str] = []
        self.was_dropped = threading.Event()

    def start(self) -> Any:
        self.launch()
        self.works.append(FakeWork())
        return self.works[-1]


class Handle:
    """The only reference that the backend has; its end is the end of the process group."""

    def __init__(self, fake: FakeProcessGroup) -> None:
        self._fake = fake

    def send(self, tensors: Any, dst: int, tag: int) -> Any:
        raise AssertionError("gloo only sums")

    recv = send

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return self._fake.start()

    def abort(self) -> None:
        raise AssertionError("gloo's abort does nothing")

    def __del__(self) -> None:
        self._fake.dropped_by.append(threading.current_thread().name)
        self._fake.was_dropped.set()


@pytest.fixture
def fake() -> Iterator[FakeProcessGroup]:
    made = FakeProcessGroup()
    yield made
    for work in made.works:
        work.end()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The group's only connection."""
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture(params=["gloo", "gloo_via_host"])
def group(
    request: pytest.FixtureRequest,
    fake: FakeProcessGroup,
    ends: tuple[socket.socket, socket.socket],
) -> Iterator[DataParallelGroup]:
    backend: AllReduceBackend = GlooBackend(Handle(fake), [ends[0].dup()], BOUND_SECONDS)
    if request.param == "gloo_via_host":
        backend = HostMemoryAllReduce(backend)
    made = DataParallelGroup(
        group_id="1/group",
        spec=GroupSpec(name="g", kind=GroupKind.GRADIENT_SUM, members=("0", "1")),
        rank=0,
        backend=backend,
        timeout_seconds=BOUND_SECONDS,
    )
    del backend
    yield made
    made.shut()


def start(group: DataParallelGroup) -> Work:
    return group.iall_reduce(torch.zeros(1))


def test_a_thread_waiting_for_a_lost_operation_is_woken(
    fake: FakeProcessGroup, group: DataParallelGroup, elsewhere: ThreadPoolExecutor
) -> None:
    """gloo may never end an operation whose connection was cut. Guard: no wait within gloo is
    without a way out (`_poll`)."""
    waiting = elsewhere.submit(start(group).wait)
    fake.works[0].is_waited_for.wait(BOUND_SECONDS)

    group.shut("fenced")

    with pytest.raises(GroupBroken, match=r": fenced$"):
        waiting.result(BOUND_SECONDS)
    assert not fake.works[0].has_ended.is_set()


def test_a_lost_end_of_a_connection_is_noticed(
    fake: FakeProcessGroup,
    group: DataParallelGroup,
    ends: tuple[socket.socket, socket.socket],
    elsewhere: ThreadPoolExecutor,
) -> None:
    """gloo may not tell that a peer has shut its end. Guard: `_poll` asks the kernel."""
    waiting = elsewhere.submit(start(group).wait)
    fake.works[0].is_waited_for.wait(BOUND_SECONDS)

    ends[1].shutdown(socket.SHUT_RDWR)

    with pytest.raises(GroupBroken, match=r": a peer ended its connection$"):
        waiting.result(BOUND_SECONDS / 2)
    assert not fake.works[0].has_ended.is_set()


def test_data_sent_before_the_end_is_received(
    fake: FakeProcessGroup,
    group: DataParallelGroup,
    ends: tuple[socket.socket, socket.socket],
    elsewhere: ThreadPoolExecutor,
) -> None:
    """A peer sends its last message and shuts its end: the message still counts."""
    work = start(group)
    ends[1].shutdown(socket.SHUT_RDWR)
    waiting = elsewhere.submit(work.wait)
    fake.works[0].is_waited_for.wait(BOUND_SECONDS)
    fake.works[0].end()
    waiting.result(BOUND_SECONDS)
    assert not group.is_shut


def test_a_failure_shuts_the_group(
    fake: FakeProcessGroup,
    group: DataParallelGroup,
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """And so wakes the neighbours. Guard: `Group._broken`, and that shutting cuts."""
    work = start(group)
    fake.works[0].end("Connection closed by peer\nand a long trace")
    for _ in range(2):
        with pytest.raises(GroupBroken, match=r": Connection closed by peer$"):
            work.wait()
    assert group.is_shut
    assert ends[1].recv(1) == b""
    with pytest.raises(GroupBroken, match=r"^group g: .*: Connection closed by peer$"):
        start(group)


def test_a_finished_operation_may_be_waited_for_again(
    fake: FakeProcessGroup, group: DataParallelGroup, elsewhere: ThreadPoolExecutor
) -> None:
    work = start(group)
    waiting = elsewhere.submit(work.wait)
    fake.works[0].is_waited_for.wait(BOUND_SECONDS)
    fake.works[0].end()
    waiting.result(BOUND_SECONDS)
    work.wait()
    assert not group.is_shut


def test_a_wait_is_bounded(fake: FakeProcessGroup, group: DataParallelGroup) -> None:
    group._timeout_seconds = 0.1
    work = start(group)
    with pytest.raises(GroupBroken, match=r"timed out after 0\.1 s"):
        work.wait()
    assert group.is_shut


def test_a_refused_start_breaks_the_group(fake: FakeProcessGroup, group: DataParallelGroup) -> None:
    def refuse() -> None:
        raise RuntimeError("pair is closed")

    fake.launch = refuse
    with pytest.raises(GroupBroken, match="all-reduce: pair is closed"):
        group.all_reduce(torch.zeros(1))


def test_a_wrong_tensor_costs_nothing(group: DataParallelGroup) -> None:
    with pytest.raises(ValueError, match="group g: all-reduce: the tensor is not contiguous"):
        group.all_reduce(torch.zeros(2, 2).t())
    assert not group.is_shut


def test_a_shut_group_is_dropped_elsewhere(
    fake: FakeProcessGroup, group: DataParallelGroup, elsewhere: ThreadPoolExecutor
) -> None:
    """Dropping a process group waits for its threads, of which one may be stuck: neither the thread
    that shuts nor one that is just starting an operation may be the last to hold it. Guard:
    `Group._drop` waits for the start."""
    is_starting, may_start = threading.Event(), threading.Event()

    def launch() -> None:
        is_starting.set()
        may_start.wait(BOUND_SECONDS)

    fake.launch = launch
    starting = elsewhere.submit(start, group)
    is_starting.wait(BOUND_SECONDS)
    group.shut()
    assert not fake.dropped_by
    may_start.set()
    starting.exception(BOUND_SECONDS)
    fake.was_dropped.wait(BOUND_SECONDS)
    assert fake.dropped_by == ["drop-group"]


class TestRetain:
    """A group outlives its generation where nothing was under way in it."""

    def test_nothing_starts_in_it_until_it_is_reopened(
        self, group: DataParallelGroup, fake: FakeProcessGroup
    ) -> None:
        assert group.retain()
        with pytest.raises(GroupBroken, match="retained by a fence"):
            start(group)
        group.shut_unless_retained("fenced")
        assert not group.is_shut
        taken = group.reopen("again")
        work = start(taken)
        fake.works[-1].end()
        work.wait()
        assert (taken.name, taken.group_id) == ("again", group.group_id)
        taken.shut()

    def test_a_shut_group_can_no_longer_be_used(
        self, group: DataParallelGroup, fake: FakeProcessGroup
    ) -> None:
        """Guard: a group of its own for each generation. Its training thread may be on its way."""
        group.retain()
        taken = group.reopen("again")
        group.shut("the attempt is void")
        with pytest.raises(GroupBroken, match="it belongs to a later generation"):
            start(group)
        start(taken)
        assert len(fake.works) == 1
        taken.shut()

    def test_not_while_something_is_under_way(
        self, group: DataParallelGroup, fake: FakeProcessGroup
    ) -> None:
        """Until it was waited for: only then did everybody begin it."""
        work = start(group)
        assert not group.retain()
        fake.works[-1].end()
        assert not group.retain()
        work.wait()
        assert group.retain()

    def test_not_while_something_starts(
        self, group: DataParallelGroup, fake: FakeProcessGroup
    ) -> None:
        """Guard: the lock of those who start."""
        seen: list[bool] = []
        fake.launch = lambda: seen.append(group.retain())
        start(group)
        assert seen == [False]

    def test_not_when_it_is_shut(self, group: DataParallelGroup) -> None:
        group.shut_unless_retained("fenced")
        assert group.is_shut
        assert not group.retain()

    def test_a_lost_member_ends_it(self, group: DataParallelGroup) -> None:
        group.retain()
        group.shut("a member was lost")
        assert group.is_shut
        assert not group.retain()
        with pytest.raises(GroupBroken, match="a member was lost"):
            group.reopen("again")
