"""The two-phase commit of a step: all engines commit it, or none does.

Votes go up each pipeline from stage to stage; the last ranks combine them across the pipelines, all
reach the same decision, and it goes down again. Passing the commit point happens under the fence:
this is the one place where a step becomes committed.

Phase 1, votes and the decision, is this module. Phase 2, the update of the layers, is
`training_step.apply_step`.

Whatever becomes of an attempt, each rank of a pipeline sends one message up and one down
(protocol/step.md): a message that is left over would be taken for one of the next attempt. An
engine that cannot go on votes `fenced`; then the last rank does not go across, and decides
`fenced`. If an engine knows beforehand that the attempt is aborted, it sends `fenced` both ways and
does not wait.
"""

from dataclasses import dataclass

import numpy as np
import torch

from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence, FencedError
from planaria_worker.engine.groups import DataParallelGroup, GroupBroken, require_open
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.step.commit_link import CommitLink
from planaria_worker.engine.step.commit_messages import (
    DECISION_LENGTH,
    Decision,
    DecisionKind,
    Message,
    VoteFormat,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """How a commit attempt ended for this engine."""

    decision: Decision
    is_committed: bool
    """The step is committed here, and the update must follow. True only if the decision is COMMIT;
    it is then False only if a fence came before the decision."""
    cause: GroupBroken | FencedError | None
    """What kept this engine from going across, or from passing the commit point."""
    broken: GroupBroken | None
    """The decision did not reach the stages before this one; the coordinator will send it."""


class TwoPhaseCommit:
    """Votes and decisions (the first phase) for the steps of one generation."""

    def __init__(
        self,
        *,
        view: PlanView,
        generation: int,
        vote_format: VoteFormat,
        commit_link: CommitLink,
        last_ranks_group: DataParallelGroup | None,
        fence: Fence,
        device: torch.device,
        failpoints: Failpoints,
    ) -> None:
        self._generation = generation
        self._format = vote_format
        self._link = commit_link
        self._row = view.row
        self._num_followers = len(view.followers)
        self._num_rows = len(view.pipelines) + len(view.followers)
        self._last_ranks_group = last_ranks_group
        self._fence = fence
        self._device = device
        self._failpoints = failpoints

    def run(self, vote: Message, step: int) -> CommitResult:
        """Exchange votes for the decision, and pass the commit point if it is COMMIT.

        Raises:
            GroupBroken: the pipeline is broken; nothing is committed.
            CommitMismatchError: a peer acts for another generation or step.
        """
        self._failpoints.hit("before_exchange", step)
        vote = self._pass_votes_up(vote)
        next_rank = self._link.next_rank
        if next_rank is None:
            decision, cause = self._decide(vote, step)
        else:
            decision, cause = self._receive_decision(next_rank, step), None
        is_committed = False
        if decision.kind is DecisionKind.COMMIT:
            try:
                self._fence.pass_commit_point(self._generation, decision.record.next_generation)
                is_committed = True
            except FencedError as error:
                cause = error.with_traceback(None)
                if next_rank is None:  # else the stages before would commit what this one did not
                    decision = Decision.fenced(self._generation, step)
        if is_committed:
            self._failpoints.hit("after_exchange", step)
        return CommitResult(
            decision=decision,
            is_committed=is_committed,
            cause=cause,
            broken=self._pass_decision_down(decision, is_committed=is_committed),
        )

    def abort(self, step: int) -> None:
        """End an attempt that is aborted whatever the others vote; do not wait for them.

        Raises:
            GroupBroken: the pipeline is broken.
        """
        self._failpoints.hit("before_exchange", step)
        self._link.abort(
            vote=self._format.fenced(generation=self._generation, step=step),
            decision=Decision.fenced(self._generation, step).encode(),
        )

    def _pass_votes_up(self, vote: Message) -> Message:
        """Add this engine's vote to those of the stages before, and pass them on."""
        link = self._link
        if link.previous_rank is not None:
            vote = self._format.merge(link.receive(self._format.length, link.previous_rank), vote)
        if link.next_rank is not None:
            link.send(vote, link.next_rank)
        return vote

    def _decide(
        self, vote: Message, step: int
    ) -> tuple[Decision, GroupBroken | FencedError | None]:
        """Decide with the other last ranks, unless an engine of this pipeline voted `fenced`."""
        cause: GroupBroken | FencedError
        fenced = Decision.fenced(self._generation, step)
        if self._format.is_fenced(vote):
            return fenced, None
        try:
            self._fence.check(self._generation)
            return self._format.decide(self._gather_votes(vote), self._num_followers), None
        except (GroupBroken, FencedError) as error:
            cause = error.with_traceback(None)
        return fenced, cause

    def _gather_votes(self, vote: Message) -> Message:
        """Return the votes of all pipelines and followers, [rows, length]."""
        rows = np.zeros((self._num_rows, self._format.length), dtype=np.int64)
        rows[self._row] = vote
        if self._last_ranks_group is None:
            return rows
        tensor = torch.from_numpy(rows).to(self._device)
        self._last_ranks_group.all_reduce(tensor)  # zeros elsewhere: the sum is the row itself
        gathered = np.asarray(tensor.cpu().numpy())
        require_open(self._last_ranks_group, "the vote")
        return gathered

    def _receive_decision(self, next_rank: int, step: int) -> Decision:
        message = self._link.receive(DECISION_LENGTH, next_rank)
        return Decision.decode(message, generation=self._generation, step=step)

    def _pass_decision_down(self, decision: Decision, *, is_committed: bool) -> GroupBroken | None:
        """Pass the decision on; a commit stands even if the stages before are gone."""
        previous_rank = self._link.previous_rank
        if previous_rank is not None:
            try:
                self._link.send(decision.encode(), previous_rank)
            except GroupBroken as error:
                if not is_committed:
                    raise
                return error.with_traceback(None)  # which would keep this frame, and be kept by it
        return None
