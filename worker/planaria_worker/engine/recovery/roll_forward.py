"""The sums that a step could be committed from: what a witness's record finds in an engine."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.step.commit_record import KeptSums
from planaria_worker.engine.step.training_context import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSums:
    """The sums of a step that this engine has not seen committed, but could commit."""

    key: KeptSums
    view: PlanView
    by_layer: Mapping[int, Tensor]


def whole_sums(place: Place, committed_steps: int) -> WholeSums | None:
    """What the step in flight could be committed from, if all of it is there."""
    ledger, reduced = place.ledger, place.reduced
    if ledger.step != committed_steps:
        return None
    if not reduced or not ledger.is_whole(reduced, place.around.job.num_microbatches):
        return None
    key = KeptSums(step=ledger.step, generation=ledger.generation)
    return WholeSums(key=key, by_layer=dict(reduced), view=place.view)
