"""The sums that a step could be committed from: what a witness's record finds in an engine."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.step.commit_record import KeptSums
from planaria_worker.engine.step.training_context import TrainingContext


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittableSums:
    """The sums of a step that this engine has not seen committed, but could commit."""

    key: KeptSums
    view: PlanView
    by_layer: Mapping[int, Tensor]


def committable_sums(context: TrainingContext, committed_steps: int) -> CommittableSums | None:
    """What the step in flight could be committed from, if all of it is there."""
    progress, reduced = context.progress, context.reduced
    if progress.step != committed_steps:
        return None
    if not reduced or not progress.is_whole(reduced, context.resources.job.num_microbatches):
        return None
    key = KeptSums(step=progress.step, generation=progress.generation)
    return CommittableSums(key=key, by_layer=dict(reduced), view=context.view)
