"""The commit messages along one pipeline: votes up, decisions down, one of each per attempt.

The link lives as long as the pipeline and has a connection of its own, because activations of the
step's next round may be under way before an attempt is over.
"""

from collections import deque

import numpy as np
import torch

from planaria_worker.engine.groups import PipelineLink, Work, require_open
from planaria_worker.engine.step.commit_messages import Message


class CommitLink:
    """One rank's end; for the training thread alone.

    Attributes:
        previous_rank: the stage before; None for the first stage.
        next_rank: the stage after; None for the last stage.
    """

    def __init__(self, group: PipelineLink | None) -> None:
        """Begin with nothing under way; `group` is None for a pipeline of one stage."""
        rank, size = (0, 1) if group is None else (group.rank, group.size)
        self.previous_rank = rank - 1 if rank > 0 else None
        self.next_rank = rank + 1 if rank + 1 < size else None
        self._group = group
        neighbours = (self.next_rank, self.previous_rank)
        self._num_unread = {rank: 0 for rank in neighbours if rank is not None}
        self._under_way: deque[Work] = deque()

    def send(self, message: Message, neighbour: int) -> None:
        """Send the message that this attempt owes a neighbour; do not wait for it to be read.

        A neighbour that has aborted the attempt reads it when it waits for the next one.

        Raises:
            GroupBroken: the pipeline is broken.
        """
        assert self._group is not None  # noqa: S101 - there is a neighbour
        while self._under_way and self._under_way[0].is_over:
            self._under_way.popleft().wait()
        self._under_way.append(self._group.isend(torch.from_numpy(message), neighbour))

    def receive(self, length: int, neighbour: int) -> Message:
        """Wait for a neighbour's message of this attempt.

        Args:
            length: of all messages of that neighbour.
            neighbour: its rank.

        Raises:
            GroupBroken: the pipeline is broken.
        """
        while self._num_unread[neighbour]:
            self._receive(length, neighbour)
            self._num_unread[neighbour] -= 1
        return self._receive(length, neighbour)

    def abort(self, *, vote: Message, decision: Message) -> None:
        """Send what an attempt owes both neighbours, and leave theirs to be dropped later.

        Raises:
            GroupBroken: the pipeline is broken.
        """
        for neighbour in self._num_unread:
            self._num_unread[neighbour] += 1
            self.send(vote if neighbour == self.next_rank else decision, neighbour)

    def _receive(self, length: int, neighbour: int) -> Message:
        assert self._group is not None  # noqa: S101 - there is a neighbour
        message = np.empty(length, dtype=np.int64)
        self._group.recv(torch.from_numpy(message), neighbour)
        require_open(self._group, "the vote")
        return message
