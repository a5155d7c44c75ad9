"""The exchange's messages along one pipeline: claims up, verdicts down, one of each an attempt.

They live as long as the pipeline, and have a connection of their own: activations of the step's
next run may be under way before an attempt is over.
"""

from collections import deque

import numpy as np
import torch

from planaria_worker.engine.groups import PipelineLink, Work, require_open
from planaria_worker.engine.step.commit_messages import Message


class CommitLink:
    """One rank's end; for the training thread alone.

    Attributes:
        below: rank of the stage before; None for the first stage.
        above: rank of the stage behind; None for the last.
    """

    def __init__(self, group: PipelineLink | None) -> None:
        """Begins with nothing under way; `group` is None for a pipeline of one stage."""
        rank, size = (0, 1) if group is None else (group.rank, group.size)
        self.below = rank - 1 if rank > 0 else None
        self.above = rank + 1 if rank + 1 < size else None
        self._group = group
        self._num_unread = {peer: 0 for peer in (self.above, self.below) if peer is not None}
        self._under_way: deque[Work] = deque()

    def send(self, message: Message, neighbour: int) -> None:
        """Sends the message that an attempt owes a neighbour.

        Waits for nobody: one that has called the attempt off reads it when it waits for the next.

        Raises:
            GroupBroken: the pipeline is not whole any more.
        """
        assert self._group is not None  # noqa: S101 - there is a neighbour
        while self._under_way and self._under_way[0].is_over:
            self._under_way.popleft().wait()
        self._under_way.append(self._group.isend(torch.from_numpy(message), neighbour))

    def receive(self, length: int, neighbour: int) -> Message:
        """Waits for a neighbour's message of this attempt.

        Args:
            length: of all messages of that neighbour.
            neighbour: its rank.

        Raises:
            GroupBroken: the pipeline is not whole any more.
        """
        while self._num_unread[neighbour]:
            self._receive(length, neighbour)
            self._num_unread[neighbour] -= 1
        return self._receive(length, neighbour)

    def call_off(self, claim: Message, verdict: Message) -> None:
        """Sends what an attempt owes both neighbours, and leaves theirs to be dropped later.

        Raises:
            GroupBroken: the pipeline is not whole any more.
        """
        for neighbour in self._num_unread:
            self._num_unread[neighbour] += 1
            self.send(claim if neighbour == self.above else verdict, neighbour)

    def _receive(self, length: int, neighbour: int) -> Message:
        assert self._group is not None  # noqa: S101 - there is a neighbour
        message = np.empty(length, dtype=np.int64)
        self._group.recv(torch.from_numpy(message), neighbour)
        require_open(self._group, "the exchange")
        return message
