"""Messages between neighbours of one pipeline."""

from torch import Tensor

from planaria_worker.engine.groups.group import Group, Work
from planaria_worker.engine.groups.transport.backends import LinkBackend


class PipelineLink(Group[LinkBackend]):
    """One stage's end of the link along its pipeline; ranks are stages."""

    def send(self, tensor: Tensor, dst: int) -> None:
        """Send a contiguous tensor to a rank; return when it may be changed again.

        Raises:
            GroupBroken: the link was shut, lost a peer, or waited too long.
        """
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> None:
        """Fill a contiguous tensor with the next one of the same size from a rank.

        Raises:
            GroupBroken: the link was shut, lost a peer, or waited too long.
        """
        self.irecv(tensor, src).wait()

    def isend(self, tensor: Tensor, dst: int) -> Work:
        """Start to send; the tensor must not change until the work was waited for."""
        return self._start(
            lambda backend: backend.send(tensor, dst), tensor, f"sending to {self.members[dst]}"
        )

    def irecv(self, tensor: Tensor, src: int) -> Work:
        """Start to receive; messages of one sender fill the tensors in the order of the calls."""
        return self._start(
            lambda backend: backend.recv(tensor, src),
            tensor,
            f"receiving from {self.members[src]}",
        )

    def has_message(self, src: int) -> bool:
        """Whether a message of a rank is known to have begun to arrive, or can never arrive."""
        backend = self._backend
        return backend is None or backend.has_message(src)
