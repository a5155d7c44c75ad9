"""What pipeline links and data-parallel groups share: operations that any thread can end."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from planaria_worker.engine.groups.group_spec import GroupSpec
from planaria_worker.engine.groups.transport.backends import (
    Backend,
    PeerConnection,
    Pending,
    connections_of,
)

B = TypeVar("B", bound=Backend)


class GroupBroken(Exception):  # noqa: N818 - an outcome, not a defect
    """The group was shut, lost a peer, or waited too long: it will never carry a message again.

    The rank does the same in each of these cases: it drops the step and looks at the fence.
    """


class Group(Generic[B]):
    """One rank's end of a group: a `PipelineLink` or a `DataParallelGroup`.

    One thread at a time starts operations, in the same order on all ranks. Any thread may call
    `shut` at any time. A rank that meets an error shuts its end, so that its neighbours meet one
    too: a single lost engine wakes the whole group, even if nothing else reports the loss. The
    exception is a rank that waits for one that has retained its end: a fence wakes it.

    Attributes:
        group_id: the same on all ranks, and unique in the job.
        name: the same on all ranks, and unique in one generation.
        spec: name, kind and members.
        members: engine ids in rank order.
        rank: of this engine.
    """

    def __init__(
        self, *, group_id: str, spec: GroupSpec, rank: int, backend: B, timeout_seconds: float
    ) -> None:
        self.group_id = group_id
        self.name = spec.name
        self.spec = spec
        self.members = spec.members
        self.rank = rank
        self._backend: B | None = backend
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._launching = threading.Lock()
        self._shut = threading.Event()
        self._reason = ""
        self._num_under_way = 0
        self._is_retained = False

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def is_shut(self) -> bool:
        return self._shut.is_set()

    @property
    def peer_connections(self) -> Sequence[PeerConnection]:
        """Those that are known, while the group is open."""
        return connections_of(self._backend)

    @property
    def is_retained(self) -> bool:
        """Whether it waits for a later generation; only a `DataParallelGroup` ever does."""
        return self._is_retained

    def shut(self, reason: str = "shut") -> None:
        """End the group: a thread blocked in it, here or at a peer, returns with GroupBroken.

        From any thread, any number of times, without waiting and without an exception.
        """
        self._end(reason, even_retained=True)

    def shut_unless_retained(self, reason: str) -> None:
        """End the group as `shut` does, unless it is retained."""
        self._end(reason, even_retained=False)

    def _end(self, reason: str, *, even_retained: bool) -> None:
        with self._lock:
            if self._shut.is_set() or self._backend is None:
                return
            if self._is_retained and not even_retained:
                return
            self._reason = reason
            self._shut.set()
            last_references = [self._backend]
            self._backend = None
        last_references[0].cut()
        # gloo's threads take 10 ms to end, and dropping the last reference waits for them.
        threading.Thread(
            target=self._drop, args=(last_references,), name="drop-group", daemon=True
        ).start()

    def _drop(self, last_references: list[B]) -> None:
        with self._launching:
            pass  # a thread that was about to start an operation has let go of the backend
        last_references.clear()

    def _start(self, launch: Callable[[B], Pending], tensor: Tensor, what: str) -> "Work":
        if not tensor.is_contiguous():
            raise ValueError(f"group {self.name}: {what}: the tensor is not contiguous")
        failure = ""
        with self._launching:
            backend = self._backend
            if backend is not None and self._is_retained:
                raise GroupBroken(f"group {self.name}: {what}: retained by a fence")
            if backend is not None:
                try:
                    work = Work(self, launch(backend), what, self._timeout_seconds)
                    with self._lock:
                        self._num_under_way += 1
                    return work
                except RuntimeError as error:
                    failure = _first_line(error)
                finally:
                    del backend
        raise self._broken(what, failure)

    def _count(self, *, done: bool) -> None:
        with self._lock:
            self._num_under_way -= done

    def _broken(self, what: str, failure: str) -> GroupBroken:
        """Shut the group if it is open; the error carries the first reason it was shut for."""
        self.shut(failure)
        return GroupBroken(f"group {self.name}: {what}: {self._reason}")


class Work:
    """An operation under way; every one must be waited for, unless the group ends."""

    def __init__(
        self, group: Group[Any], pending: Pending, what: str, timeout_seconds: float
    ) -> None:
        self._group = group
        self._pending: Pending | None = pending
        self._what = what
        self._timeout_seconds = timeout_seconds
        self._is_done = False

    @property
    def is_over(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        pending = self._pending
        return pending is None or pending.is_over()

    def wait(self) -> None:
        """Return when the operation is complete.

        Raises:
            GroupBroken: the group was shut, lost a peer, or waited too long. The tensor must not be
                used for anything else: the backend may hold it for a while.
        """
        pending, self._pending = self._pending, None
        failure = ""
        if pending is not None:
            try:
                self._is_done = pending.wait(self._timeout_seconds, self._group._shut)
                self._group._count(done=self._is_done)
            except RuntimeError as error:
                failure = _first_line(error)
            del pending  # it holds the group's connections: no traceback may keep it
        if not self._is_done:
            raise self._group._broken(self._what, failure)


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def require_open(group: Group[Any], during: str) -> None:
    """Refuse the result of an operation in a group that was shut: half of it may be missing.

    Raises:
        GroupBroken: the group was shut, whatever the transport said of the operation.
    """
    if group.is_shut:
        raise GroupBroken(f"group {group.name}: shut during {during}")
