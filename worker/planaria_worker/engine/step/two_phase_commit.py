"""The first phase of a commit: everybody learns that everybody has the whole sums of the step.

Claims go up the pipeline, side by side across the last ranks, and the verdict comes down. Passing
it on or not is decided under the fence: this is the one place where a step becomes committed.

Whatever comes of an attempt, each rank of a pipeline sends one message up and one down
(protocol/step.md): what is left of an attempt would be taken for the next one's. Whoever cannot go
on says `fenced` in place of its claim; then the last rank does not go across, and answers `fenced`.
Whoever knows beforehand how it will end says `fenced` both ways, and does not wait for the end.
"""

from dataclasses import dataclass

import numpy as np
import torch

from planaria_worker.engine.groups import GroupBroken, SumGroup, require_open
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.process.failpoints import Failpoints
from planaria_worker.engine.recovery.fence import Fence, FencedError
from planaria_worker.engine.step.commit_link import CommitLink
from planaria_worker.engine.step.commit_messages import (
    VERDICT_LENGTH,
    ExchangeFormat,
    Message,
    Outcome,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """How the exchange ended for this engine."""

    outcome: Outcome
    is_passed: bool
    """The step is committed here, and the update must follow. Never, unless the outcome is COMMIT;
    if it is, only a fence that came before the outcome can have prevented it."""
    cause: GroupBroken | FencedError | None
    """What kept this engine from going across or passing."""
    broken: GroupBroken | None
    """The stages before this one could not be told; they will be, by the coordinator."""


class TwoPhaseCommit:
    """The exchange of one generation."""

    def __init__(
        self,
        *,
        view: PlanView,
        generation: int,
        exchange_format: ExchangeFormat,
        line: CommitLink,
        last_ranks_group: SumGroup | None,
        fence: Fence,
        device: torch.device,
        failpoints: Failpoints,
    ) -> None:
        self._generation = generation
        self._format = exchange_format
        self._line = line
        self._row = view.row
        self._num_followers = len(view.followers)
        self._num_rows = len(view.pipelines) + len(view.followers)
        self._last_ranks_group = last_ranks_group
        self._fence = fence
        self._device = device
        self._failpoints = failpoints

    def run(self, claim: Message, step: int) -> Agreed:
        """Exchanges claims for the verdict; the last rank of a pipeline finds it.

        Raises:
            GroupBroken: the pipeline's group is lost; nothing is committed.
            ExchangeMismatchError: somebody acts for another generation or step.
        """
        self._failpoints.hit("before_exchange", step)
        claim = self._up(claim)
        above = self._line.above
        outcome, cause = self._across(claim, step) if above is None else self._down(above, step)
        is_passed = False
        if outcome.verdict is Verdict.COMMIT:
            try:
                self._fence.pass_exchange(self._generation, outcome.record.next_generation)
                is_passed = True
            except FencedError as error:
                cause = error.with_traceback(None)
                if above is None:  # had it said so below, others would be a step ahead of it
                    outcome = Outcome.fenced(self._generation, step)
        if is_passed:
            self._failpoints.hit("after_exchange", step)
        return Agreed(
            outcome=outcome,
            is_passed=is_passed,
            cause=cause,
            broken=self._tell_below(outcome, is_passed=is_passed),
        )

    def call_off(self, step: int) -> None:
        """Has an attempt end that is void whatever comes, and waits for nobody.

        Raises:
            GroupBroken: the pipeline's group is lost.
        """
        self._failpoints.hit("before_exchange", step)
        self._line.call_off(
            self._format.fenced(generation=self._generation, step=step),
            Outcome.fenced(self._generation, step).encode(),
        )

    def _up(self, claim: Message) -> Message:
        """Adds this engine's claim to those of the stages before, and passes it on."""
        line = self._line
        if line.below is not None:
            claim = self._format.merge(line.receive(self._format.length, line.below), claim)
        if line.above is not None:
            line.send(claim, line.above)
        return claim

    def _across(
        self, claim: Message, step: int
    ) -> tuple[Outcome, GroupBroken | FencedError | None]:
        """Finds the verdict with the other last ranks, unless somebody below has broken off."""
        cause: GroupBroken | FencedError
        fenced = Outcome.fenced(self._generation, step)
        if self._format.is_fenced(claim):
            return fenced, None
        try:
            self._fence.check(self._generation)
            return self._format.judge(self._gather(claim), self._num_followers), None
        except (GroupBroken, FencedError) as error:
            cause = error.with_traceback(None)
        return fenced, cause

    def _gather(self, claim: Message) -> Message:
        """Puts the claims of pipelines and followers side by side, [rows, length]."""
        rows = np.zeros((self._num_rows, self._format.length), dtype=np.int64)
        rows[self._row] = claim
        if self._last_ranks_group is None:
            return rows
        tensor = torch.from_numpy(rows).to(self._device)
        self._last_ranks_group.all_reduce(tensor)  # zeros elsewhere: the sum is the row itself
        gathered = np.asarray(tensor.cpu().numpy())
        require_open(self._last_ranks_group, "the exchange")
        return gathered

    def _down(self, above: int, step: int) -> tuple[Outcome, None]:
        message = self._line.receive(VERDICT_LENGTH, above)
        return Outcome.decode(message, generation=self._generation, step=step), None

    def _tell_below(self, outcome: Outcome, *, is_passed: bool) -> GroupBroken | None:
        """Passes the verdict on; a commit that was passed stands even if they are gone."""
        below = self._line.below
        if below is not None:
            try:
                self._line.send(outcome.encode(), below)
            except GroupBroken as error:
                if not is_passed:
                    raise
                return error.with_traceback(None)  # which would keep this frame, and be kept by it
        return None
