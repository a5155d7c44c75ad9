"""Roll forward: an engine that did not see a step's commit applies it from a witness's record.

If any engine of the job has seen the commit (a witness), the step is committed, and every other
engine must commit it too: from its own complete sums, or else by copying the layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from torch import Tensor

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.step.training_context import TrainingContext


class RollForwardDecision(Enum):
    """What a witness's record asks of an engine."""

    NOTHING = auto()
    """The engine has committed this step itself."""
    APPLY = auto()
    """The engine has the very sums of the record."""
    STALE = auto()
    """The engine lacks them: its layers remain at the version before and must be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsKey:
    """Which attempt's sums an engine still has, all of them complete."""

    step: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittableSums:
    """The sums of a step that this engine has not seen committed, but could commit."""

    key: SumsKey
    view: PlanView
    by_layer: Mapping[int, Tensor]


def decide_roll_forward(
    record: CommitRecord, *, committed_steps: int, kept: SumsKey | None
) -> RollForwardDecision:
    """Decide what a witness's record means for an engine that keeps these sums.

    Sums of the same step but another generation are not the record's: a step that was aborted and
    done again may, in fast mode, differ by rounding.

    Raises:
        ValueError: the record is more than one step ahead, which the protocol excludes.
    """
    if record.step < committed_steps:
        return RollForwardDecision.NOTHING
    if record.step > committed_steps:
        raise ValueError(
            f"record.step: step {record.step} cannot follow {committed_steps} committed steps"
        )
    if kept == SumsKey(step=record.step, generation=record.generation):
        return RollForwardDecision.APPLY
    return RollForwardDecision.STALE


def committable_sums(context: TrainingContext, committed_steps: int) -> CommittableSums | None:
    """Return the sums of the step in flight, if all of them are complete."""
    progress, reduced = context.progress, context.reduced
    if progress.step != committed_steps:
        return None
    if not reduced or not progress.is_complete(reduced, context.resources.job.num_microbatches):
        return None
    key = SumsKey(step=progress.step, generation=progress.generation)
    return CommittableSums(key=key, by_layer=dict(reduced), view=context.view)
