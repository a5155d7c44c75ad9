"""Tensors go by way of buffers of their own: what a group's user sees, and what it never sees."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from planaria_worker.engine.groups import (
    DataParallelGroup,
    GroupBroken,
    GroupKind,
    GroupSpec,
    PipelineLink,
    Work,
)
from planaria_worker.engine.groups.transport.backends import Pending
from planaria_worker.engine.groups.transport.host_memory import HostMemoryAllReduce, HostMemoryLink

BOUND_SECONDS = 30.0


@dataclass(frozen=True)
class Ends:
    """Both kinds of group over one backend."""

    link: PipelineLink
    sums: DataParallelGroup

    def shut(self, reason: str) -> None:
        self.link.shut(reason)
        self.sums.shut(reason)


RECEIVING: dict[str, Callable[[Ends, Tensor], Work]] = {
    "recv": lambda ends, tensor: ends.link.irecv(tensor, 1),
    "all_reduce": lambda ends, tensor: ends.sums.iall_reduce(tensor),
}


class FakeOperation:
    """An operation on a buffer, which ends when the test says so."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.failure: str | None = None
        self._has_ended = threading.Event()

    def end(self, values: list[float]) -> None:
        self.buffer.copy_(torch.tensor(values))
        self._has_ended.set()

    def fail(self, failure: str) -> None:
        self.failure = failure
        self._has_ended.set()

    def wait(self, timeout_seconds: float, shut: threading.Event) -> bool:
        while not self._has_ended.wait(0.001):
            if shut.is_set():
                return False
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return True

    def is_over(self) -> bool:
        return self._has_ended.is_set()


class FakeBackend:
    """Keeps what was started."""

    def __init__(self) -> None:
        self.started: list[FakeOperation] = []
        self.is_cut = False

    def send(self, tensor: Tensor, dst: int) -> Pending:
        self.started.append(FakeOperation(tensor))
        return self.started[-1]

    recv = send

    def all_reduce(self, tensor: Tensor) -> Pending:
        return self.send(tensor, 0)

    def has_message(self, src: int) -> bool:
        return src == 0

    def cut(self) -> None:
        self.is_cut = True


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def ends(backend: FakeBackend) -> Ends:
    members = ("0", "1")
    return Ends(
        link=PipelineLink(
            group_id="1/link",
            spec=GroupSpec(name="link", kind=GroupKind.ACTIVATIONS, members=members),
            rank=0,
            backend=HostMemoryLink(backend),
            timeout_seconds=BOUND_SECONDS,
        ),
        sums=DataParallelGroup(
            group_id="1/sums",
            spec=GroupSpec(name="sums", kind=GroupKind.GRADIENT_SUM, members=members),
            rank=0,
            backend=HostMemoryAllReduce(backend),
            timeout_seconds=BOUND_SECONDS,
        ),
    )


def test_a_message_holds_the_tensor_at_the_time_of_sending(
    backend: FakeBackend, ends: Ends
) -> None:
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    work = ends.link.isend(tensor, 1)
    (sent,) = backend.started
    with torch.no_grad():
        tensor.zero_()
    assert sent.buffer.tolist() == [1, 2]
    assert not sent.buffer.requires_grad
    sent.end([1, 2])
    work.wait()


@pytest.mark.parametrize("operation", RECEIVING)
def test_a_tensor_changes_only_while_it_is_waited_for(
    backend: FakeBackend, ends: Ends, operation: str
) -> None:
    tensor = torch.tensor([1.0, 2.0])
    work = RECEIVING[operation](ends, tensor)
    assert not work.is_over
    backend.started[0].end([3, 4])
    assert work.is_over
    assert tensor.tolist() == [1, 2]
    work.wait()
    assert tensor.tolist() == [3, 4]


def test_messages_fill_the_tensors_in_the_order_of_the_calls(
    backend: FakeBackend, ends: Ends
) -> None:
    """Each has a buffer of its own, whichever is waited for first."""
    tensors = [torch.zeros(1), torch.zeros(1)]
    works = [ends.link.irecv(tensor, 1) for tensor in tensors]
    for index, operation in enumerate(backend.started):
        operation.end([index + 1])
    for work in reversed(works):
        work.wait()
    assert [tensor.item() for tensor in tensors] == [1, 2]


@pytest.mark.parametrize("operation", RECEIVING)
def test_a_late_message_is_not_written(backend: FakeBackend, ends: Ends, operation: str) -> None:
    """A lost operation may still end: the tensor is somebody else's by then. Guard: only a wait
    that succeeded copies."""
    tensor = torch.tensor([1.0, 2.0])
    work = RECEIVING[operation](ends, tensor)
    ends.shut("fenced")
    assert backend.is_cut
    with pytest.raises(GroupBroken, match="fenced"):
        work.wait()
    backend.started[0].end([3, 4])
    with pytest.raises(GroupBroken, match="fenced"):
        work.wait()
    assert tensor.tolist() == [1, 2]


@pytest.mark.parametrize("operation", RECEIVING)
def test_a_failed_message_is_not_written(backend: FakeBackend, ends: Ends, operation: str) -> None:
    tensor = torch.tensor([1.0, 2.0])
    work = RECEIVING[operation](ends, tensor)
    backend.started[0].fail("Connection closed by peer")
    with pytest.raises(GroupBroken, match="Connection closed by peer"):
        work.wait()
    assert tensor.tolist() == [1, 2]


def test_an_all_reduce_begins_with_the_tensor(backend: FakeBackend, ends: Ends) -> None:
    tensor = torch.tensor([1, 2], dtype=torch.int64)
    ends.sums.iall_reduce(tensor)
    assert backend.started[0].buffer.tolist() == [1, 2]
    assert backend.started[0].buffer.dtype == torch.int64
    assert backend.started[0].buffer.data_ptr() != tensor.data_ptr()
