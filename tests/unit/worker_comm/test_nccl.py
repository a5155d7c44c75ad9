"""What is asked of torch's NCCL backend, played by a fake: the real one needs a GPU."""

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import HashStore

from planaria_worker.engine.groups import (
    DataParallelGroup,
    GroupBroken,
    GroupKind,
    GroupSpec,
    PipelineLink,
)

BOUND_SECONDS = 30.0
MODULE = "planaria_worker.engine.groups.transport.nccl"


class FakeWork:
    """Ends when the test says so; one that was aborted ends as if it were complete."""

    def __init__(self, is_complete: bool) -> None:
        self._has_ended = threading.Event()
        self.failure: str | None = None
        self.is_looked_at = threading.Event()
        if is_complete:
            self.end()

    def end(self, failure: str | None = None) -> None:
        self.failure = failure
        self._has_ended.set()

    def is_completed(self) -> bool:
        self.is_looked_at.set()
        return self._has_ended.is_set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        assert timeout is None, "a timeout makes torch look once in a millisecond"
        assert self._has_ended.is_set(), "the stream would wait for a peer"
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return True


class FakeProcessGroup:
    """Records what it is told."""

    made: "ClassVar[list[FakeProcessGroup]]"
    has_started: ClassVar[threading.Event]
    """An operation, of any group."""
    is_complete = True
    """Whether operations end at once."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.options = options
        self.calls: list[tuple[Any, ...]] = []
        self.works: list[FakeWork] = []
        self.is_aborting = threading.Event()
        self.may_abort = threading.Event()
        self.may_abort.set()
        self.abort_error: str | None = None
        self.made.append(self)

    class Options:
        def __init__(self) -> None:
            self.config = SimpleNamespace(blocking=None)
            self._timeout: timedelta | None = None
            self.is_high_priority_stream = False

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.calls.append(("connect", device))

    def _start(self, *call: Any) -> FakeWork:
        self.calls.append(call)
        self.works.append(FakeWork(self.is_complete))
        self.has_started.set()
        return self.works[-1]

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> FakeWork:
        return self._start("send", dst)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> FakeWork:
        return self._start("recv", src)

    def allreduce(self, tensors: list[Tensor], options: Any) -> FakeWork:
        return self._start("all_reduce", tensors[0].nbytes)

    def abort(self) -> None:
        """As NCCL's: it may take long, and operations only end when it is over."""
        self.is_aborting.set()
        self.may_abort.wait(BOUND_SECONDS)
        for work in self.works:
            work.end()
        if self.abort_error is not None:
            raise RuntimeError(self.abort_error)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcessGroup]:
    """What is taken for torch's class."""

    class Fake(FakeProcessGroup):
        made: ClassVar[list[FakeProcessGroup]] = []
        has_started = threading.Event()

    monkeypatch.setattr(_distributed_c10d, "ProcessGroupNCCL", Fake, raising=False)
    return Fake


@pytest.fixture
def nccl(fake: type[FakeProcessGroup], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, which builds of torch without CUDA cannot import."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    module = importlib.import_module(MODULE)
    yield module
    del sys.modules[MODULE]


def connect(nccl: ModuleType, rank: int, size: int, *, step: int | None = None) -> Any:
    """A link whose messages go `step` ranks, or sums."""
    device = torch.device("cpu")
    if step is None:
        connector = nccl.NcclAllReduceConnector(device, BOUND_SECONDS)
    else:
        connector = nccl.NcclLinkConnector(device, BOUND_SECONDS, step=step)
    return connector.connect(HashStore(), rank, [""] * size, timeout_seconds=BOUND_SECONDS)


@pytest.fixture
def link(nccl: ModuleType) -> PipelineLink:
    return PipelineLink(
        group_id="1/link",
        spec=GroupSpec(name="link", kind=GroupKind.ACTIVATIONS, members=("0", "1")),
        rank=0,
        backend=connect(nccl, 0, 2, step=1),
        timeout_seconds=BOUND_SECONDS,
    )


@pytest.fixture
def sums(nccl: ModuleType) -> DataParallelGroup:
    return DataParallelGroup(
        group_id="1/sums",
        spec=GroupSpec(name="sums", kind=GroupKind.GRADIENT_SUM, members=("0", "1")),
        rank=0,
        backend=connect(nccl, 0, 2),
        timeout_seconds=BOUND_SECONDS,
    )


def test_a_failure_cannot_end_the_process(nccl: ModuleType, fake: type[FakeProcessGroup]) -> None:
    """torch's watchdogs end it by default, at once or minutes later."""
    connect(nccl, 0, 2)
    for name in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT"):
        assert os.environ[f"TORCH_NCCL_{name}"] == "0"
    assert os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] == "30"
    (group,) = fake.made
    assert group.options.config.blocking == 0
    assert group.options._timeout == timedelta(seconds=BOUND_SECONDS)


@pytest.mark.parametrize(
    ("rank", "step", "expected"),
    [
        (0, 1, [("send", 1)]),
        (1, 1, [("recv", 0), ("send", 2)]),
        (2, 1, [("recv", 1)]),
        (0, -1, [("recv", 1)]),
        (1, -1, [("recv", 2), ("send", 0)]),
        (2, -1, [("send", 1)]),
    ],
)
def test_a_link_connects_the_way_its_messages_go(
    nccl: ModuleType,
    fake: type[FakeProcessGroup],
    rank: int,
    step: int,
    expected: list[tuple[str, int]],
) -> None:
    """Later calls must not wait for a peer: nothing would wake them."""
    connect(nccl, rank, 3, step=step)
    assert fake.made[0].calls == [("connect", torch.device("cpu")), *expected]
    assert fake.made[0].options.is_high_priority_stream


def test_a_group_that_sums_connects_by_sums(nccl: ModuleType, fake: type[FakeProcessGroup]) -> None:
    connect(nccl, 1, 3)
    sizes = (8, 8 << 20, 64 << 20)
    assert fake.made[0].calls[1:] == [("all_reduce", size) for size in sizes]
    assert not fake.made[0].options.is_high_priority_stream


def test_connecting_can_be_cut(
    nccl: ModuleType,
    fake: type[FakeProcessGroup],
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: ThreadPoolExecutor,
) -> None:
    """Even where the abort takes long. Guard: the wait looks at the connector's own event."""
    monkeypatch.setattr(fake, "is_complete", False)
    connector = nccl.NcclAllReduceConnector(torch.device("cpu"), BOUND_SECONDS)
    waiting = elsewhere.submit(
        connector.connect, HashStore(), 0, ["", ""], timeout_seconds=BOUND_SECONDS
    )
    assert fake.has_started.wait(BOUND_SECONDS)
    fake.made[0].may_abort.clear()
    fake.made[0].works[0].is_looked_at.wait(BOUND_SECONDS)

    connector.cut()

    with pytest.raises(RuntimeError, match=r"^cut while it connected$"):
        waiting.result(BOUND_SECONDS / 2)
    assert fake.made[0].is_aborting.wait(BOUND_SECONDS)
    fake.made[0].may_abort.set()


def test_a_connector_that_was_cut_before_connects_nothing(
    nccl: ModuleType, fake: type[FakeProcessGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "is_complete", False)
    connector = nccl.NcclAllReduceConnector(torch.device("cpu"), BOUND_SECONDS)
    connector.cut()
    with pytest.raises(RuntimeError, match="cut while it connected"):
        connector.connect(HashStore(), 0, ["", ""], timeout_seconds=BOUND_SECONDS)
    assert fake.made[0].is_aborting.wait(BOUND_SECONDS)


def test_peers_that_do_not_come_in_time(
    nccl: ModuleType, fake: type[FakeProcessGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "is_complete", False)
    connector = nccl.NcclAllReduceConnector(torch.device("cpu"), BOUND_SECONDS)
    with pytest.raises(RuntimeError, match="timed out"):
        connector.connect(HashStore(), 0, ["", ""], timeout_seconds=0.01)
    assert fake.made[0].is_aborting.wait(BOUND_SECONDS)


def test_shutting_a_group_does_not_wait_for_the_abort(
    link: PipelineLink,
    fake: type[FakeProcessGroup],
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: ThreadPoolExecutor,
) -> None:
    """It is the thread that answers the agent. Who waits is woken before the abort is over, too."""
    monkeypatch.setattr(fake, "is_complete", False)
    work = link.irecv(torch.zeros(1), 1)
    fake.made[0].may_abort.clear()
    waiting = elsewhere.submit(work.wait)
    fake.made[0].works[-1].is_looked_at.wait(BOUND_SECONDS)

    link.shut("fenced")

    with pytest.raises(GroupBroken, match=r": fenced$"):
        waiting.result(BOUND_SECONDS / 2)
    assert fake.made[0].is_aborting.wait(BOUND_SECONDS)
    fake.made[0].may_abort.set()


def test_an_aborted_operation_is_not_complete(
    sums: DataParallelGroup, fake: type[FakeProcessGroup]
) -> None:
    """NCCL ends it without an error, whatever is in the tensor. Guard: the wait looks whether the
    group was shut."""
    work = sums.iall_reduce(torch.zeros(1))
    sums.shut("fenced")
    with pytest.raises(GroupBroken, match="fenced"):
        work.wait()


def test_an_nccl_error_breaks_the_group(
    sums: DataParallelGroup, fake: type[FakeProcessGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "is_complete", False)
    work = sums.iall_reduce(torch.zeros(1))
    fake.made[0].works[-1].end("NCCL error: remote process exited\nand a long trace")
    with pytest.raises(GroupBroken, match=r"remote process exited$"):
        work.wait()
    assert fake.made[0].is_aborting.wait(BOUND_SECONDS)


def test_a_wait_is_bounded(
    link: PipelineLink, fake: type[FakeProcessGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "is_complete", False)
    link._timeout_seconds = 0.01
    with pytest.raises(GroupBroken, match=r"timed out after 0\.01 s"):
        link.recv(torch.zeros(1), 1)
    assert link.is_shut


def test_a_failed_abort_says_nothing(
    nccl: ModuleType, fake: type[FakeProcessGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest would report what a thread raises."""
    backend = connect(nccl, 0, 2)
    fake.made[0].abort_error = "NCCL error: operation in progress"
    backend.cut()
    assert fake.made[0].is_aborting.wait(BOUND_SECONDS)
