"""All-reduce across the engines that own a layer, or across the last ranks."""

from dataclasses import replace

from torch import Tensor

from planaria_worker.engine.groups.group import Group, GroupBroken, Work
from planaria_worker.engine.groups.transport.backends import AllReduceBackend


class DataParallelGroup(Group[AllReduceBackend]):
    """One owner's end of a group that sums.

    A fence retains a group in which no operation is under way. A later generation can reopen it;
    until then it carries nothing, and only `shut` ends it.
    """

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor by its sum over all ranks.

        Raises:
            GroupBroken: the group was shut, lost a peer, or waited too long; the tensor's contents
                are then undefined.
        """
        self.iall_reduce(tensor).wait()

    def iall_reduce(self, tensor: Tensor) -> Work:
        """Start to sum; several may be under way, started in the same order on all ranks."""
        return self._start(lambda backend: backend.all_reduce(tensor), tensor, "all-reduce")

    def retain(self) -> bool:
        """Let no operation start from now on; any thread, without waiting.

        Returns:
            Whether the group is retained. It is not if it is shut, or if an operation has started
            that was not waited for. An operation that was waited for was started by all ranks, so
            if all ranks retain their ends, all have done the same operations.
        """
        if not self._launching.acquire(blocking=False):
            return False
        try:
            with self._lock:
                if not self._shut.is_set() and not self._num_under_way:
                    self._is_retained = True
                return self._is_retained and not self._shut.is_set()
        finally:
            self._launching.release()

    def reopen(self, name: str) -> "DataParallelGroup":
        """Return the group for a later generation; this object is shut.

        Args:
            name: its name in that generation.

        Raises:
            GroupBroken: it was shut before.
        """
        with self._lock:
            backend, self._backend = self._backend, None
            if backend is None:
                raise GroupBroken(f"group {self.name}: {self._reason}")
            self._reason = "it belongs to a later generation"
            self._shut.set()
        return DataParallelGroup(
            group_id=self.group_id,
            spec=replace(self.spec, name=name),
            rank=self.rank,
            backend=backend,
            timeout_seconds=self._timeout_seconds,
        )
