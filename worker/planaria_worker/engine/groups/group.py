"""A group of engines that send tensors to each other, until somebody shuts it."""

import threading
from collections.abc import Callable

from torch import Tensor

from planaria_worker.engine.groups.backends import GroupBackend, Pending
from planaria_worker.engine.groups.errors import GroupBroken


class Group:
    """One rank's end of a group.

    Operations are called by one thread at a time and in the same order on all ranks; `shut` by any
    thread at any moment. A rank that meets an error shuts its end, so that its neighbours meet one
    too: a single loss wakes the whole group, one after another, even when nobody tells them. But
    for those who wait for a rank that has set its end aside: a fence wakes them.

    A group in which nothing is under way can be set aside, and taken up by a later generation:
    until then it carries nothing, and only `shut` ends it.

    Attributes:
        group_id: the same on all ranks, and of no other group of the job.
        name: the same on all ranks, in one generation.
        members: engine ids in rank order.
        is_line: whether it carries messages between neighbours, and sums nothing.
        is_brief: whether it is made for small sums, and not for gradients.
        rank: the place of this engine.
    """

    def __init__(
        self,
        *,
        group_id: str,
        name: str,
        members: tuple[str, ...],
        is_line: bool = False,
        is_brief: bool = False,
        rank: int,
        backend: GroupBackend,
        timeout_seconds: float,
    ) -> None:
        self.group_id = group_id
        self.name = name
        self.members = members
        self.is_line = is_line
        self.is_brief = is_brief
        self.rank = rank
        self._backend: GroupBackend | None = backend
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._launching = threading.Lock()
        self._shut = threading.Event()
        self._reason = ""
        self._num_under_way = 0
        self._is_aside = False

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def is_shut(self) -> bool:
        return self._shut.is_set()

    @property
    def is_aside(self) -> bool:
        return self._is_aside

    def send(self, tensor: Tensor, dst: int) -> None:
        """Sends a contiguous tensor to a rank; returns when it may be changed again.

        Raises:
            GroupBroken: the group was shut, lost a peer, or waited too long.
        """
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> None:
        """Fills a contiguous tensor with the next one of the same size that a rank sent.

        Raises:
            GroupBroken: the group was shut, lost a peer, or waited too long.
        """
        self.irecv(tensor, src).wait()

    def all_reduce(self, tensor: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over all ranks.

        Raises:
            GroupBroken: the group was shut, lost a peer, or waited too long; the tensor's contents
                are then undefined.
        """
        self.iall_reduce(tensor).wait()

    def isend(self, tensor: Tensor, dst: int) -> "Work":
        """Starts to send; the tensor must not change until the work was waited for."""
        return self._start(
            lambda backend: backend.send(tensor, dst), tensor, f"sending to {self.members[dst]}"
        )

    def irecv(self, tensor: Tensor, src: int) -> "Work":
        """Starts to receive; messages of one sender fill the tensors in the order of the calls."""
        return self._start(
            lambda backend: backend.recv(tensor, src),
            tensor,
            f"receiving from {self.members[src]}",
        )

    def iall_reduce(self, tensor: Tensor) -> "Work":
        """Starts to sum; several may be under way, started in the same order on all ranks."""
        return self._start(lambda backend: backend.all_reduce(tensor), tensor, "all-reduce")

    def has_message(self, src: int) -> bool:
        """Whether a message of a rank is known to have begun to arrive, or never will any more."""
        backend = self._backend
        return backend is None or backend.has_message(src)

    def shut(self, reason: str = "shut") -> None:
        """Ends the group: whoever is blocked in it, here or at a peer, returns with GroupBroken.

        From any thread, as often as one likes, at once, and without an exception.
        """
        self._end(reason, even_aside=True)

    def _end(self, reason: str, *, even_aside: bool) -> None:
        with self._lock:
            if self._shut.is_set() or self._backend is None or (self._is_aside and not even_aside):
                return
            self._reason = reason
            self._shut.set()
            last_references = [self._backend]
            self._backend = None
        last_references[0].cut()
        # gloo's threads take 10 ms to end, and the one to drop the group last has to wait for them.
        threading.Thread(
            target=self._drop, args=(last_references,), name="drop-group", daemon=True
        ).start()

    def set_aside(self) -> bool:
        """Lets no operation start from now on; any thread, at once.

        Returns:
            Whether the group is aside: not when it is shut, or something is under way, or begun and
            not yet waited for. An operation that somebody has waited for was begun by everybody, so
            where all ranks set their ends aside, all have done the same operations.
        """
        if not self._launching.acquire(blocking=False):
            return False
        try:
            with self._lock:
                if not self._shut.is_set() and not self._num_under_way:
                    self._is_aside = True
                return self._is_aside and not self._shut.is_set()
        finally:
            self._launching.release()

    def take_up(self, name: str) -> "Group":
        """Returns the group for a later generation; this one has ended then for whoever has it.

        Args:
            name: that it has from now on.

        Raises:
            GroupBroken: it was shut.
        """
        with self._lock:
            backend, self._backend = self._backend, None
            if backend is None:
                raise GroupBroken(f"group {self.name}: {self._reason}")
            self._reason = "it belongs to a later generation"
            self._shut.set()
        return Group(
            group_id=self.group_id,
            name=name,
            members=self.members,
            is_brief=self.is_brief,
            rank=self.rank,
            backend=backend,
            timeout_seconds=self._timeout_seconds,
        )

    def give_up(self, reason: str) -> None:
        """Ends the group as `shut` does, unless it was set aside."""
        self._end(reason, even_aside=False)

    def _drop(self, last_references: list[GroupBackend]) -> None:
        with self._launching:
            pass  # who was about to start an operation has let go of the group
        last_references.clear()

    def _start(
        self, launch: Callable[[GroupBackend], Pending], tensor: Tensor, what: str
    ) -> "Work":
        if not tensor.is_contiguous():
            raise ValueError(f"group {self.name}: {what}: the tensor is not contiguous")
        failure = ""
        with self._launching:
            backend = self._backend
            if backend is not None and self._is_aside:
                raise GroupBroken(f"group {self.name}: {what}: set aside by a fence")
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
        """Shuts the group, if it is not, and says why: the first reason is the one that counts."""
        self.shut(failure)
        return GroupBroken(f"group {self.name}: {what}: {self._reason}")


class Work:
    """An operation under way; every one must be waited for, unless the group ends."""

    def __init__(self, group: Group, pending: Pending, what: str, timeout_seconds: float) -> None:
        self._group = group
        self._pending: Pending | None = pending
        self._what = what
        self._timeout_seconds = timeout_seconds
        self._is_done = False

    @property
    def is_over(self) -> bool:
        """Whether nobody would have to wait; how it ended, `wait` says."""
        pending = self._pending
        return pending is None or pending.is_over()

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Returns when the operation is complete; once it is, at once.

        Args:
            timeout_seconds: at most this long, instead of the group's own bound. gloo cannot take
                back an operation: a wait that is too long costs the group.

        Raises:
            GroupBroken: the group was shut, lost a peer, or waited too long. The tensor must not be
                used for anything else: the backend may hold it for a while.
        """
        pending, self._pending = self._pending, None
        failure = ""
        if pending is not None:
            seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
            try:
                self._is_done = pending.wait(seconds, self._group._shut)
                self._group._count(done=self._is_done)
            except RuntimeError as error:
                failure = _first_line(error)
            del pending  # it holds the group's connections: nothing may keep it, least a traceback
        if not self._is_done:
            raise self._group._broken(self._what, failure)


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def require_open(group: Group, during: str) -> None:
    """Whatever the transport said of an operation: if the group was shut, half of it may be here.

    Raises:
        GroupBroken: it was.
    """
    if group.is_shut:
        raise GroupBroken(f"group {group.name}: shut during {during}")
