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
    """The engine has the very sums of the record, or the step was skipped and needs none."""
    STALE = auto()
    """The engine lacks them: its layers remain at the version before and must be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsKey:
    """Which attempt's sums an engine still has."""

    step: int
    generation: int

    @classmethod
    def of(cls, record: CommitRecord) -> "SumsKey":
        """Return the key of the sums that a record commits."""
        return cls(step=record.step, generation=record.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittableSums:
    """The sums of a step that this engine has not seen committed, but could commit."""

    key: SumsKey
    view: PlanView
    by_layer: Mapping[int, Tensor]
    """Empty unless all of them are complete: then the step can only be committed if all others have
    skipped it."""

    @property
    def complete_key(self) -> SumsKey | None:
        """Return the key of sums that are complete."""
        return self.key if self.by_layer else None


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
    if record.is_skipped or kept == SumsKey.of(record):
        return RollForwardDecision.APPLY
    return RollForwardDecision.STALE


def committable_sums(context: TrainingContext, committed_steps: int) -> CommittableSums | None:
    """Return what the step in flight could be committed from."""
    progress, reduced = context.progress, context.reduced
    if progress.step != committed_steps:
        return None
    is_complete = progress.is_complete(reduced, context.resources.job.num_microbatches)
    return CommittableSums(
        key=SumsKey(step=progress.step, generation=progress.generation),
        by_layer=dict(reduced) if is_complete else {},
        view=context.view,
    )
