"""One training step, as in ALGORITHMS.md 6: compute, reduce, agree, commit."""

from dataclasses import dataclass

from planaria_worker.engine.commit import CommitRecord
from planaria_worker.engine.communication import GroupBroken
from planaria_worker.engine.exchange import LayerClaim, Message, Verdict
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.job import Job
from planaria_worker.engine.ledger import Ledger
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.loss import loss_units
from planaria_worker.engine.numerics.norm import squared_norm
from planaria_worker.engine.numerics.optimizer import gradient_scale, update
from planaria_worker.engine.place import Place
from planaria_worker.engine.state import LayerStore


class RefusedStepError(Exception):
    """Everybody agreed that this step must not be committed."""

    def __init__(self, verdict: Verdict, layer: int, step: int) -> None:
        super().__init__(f"step {step} is not committed: {verdict.name} in layer {layer}")
        self.verdict = verdict
        self.layer = layer
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep:
    """A step that was applied."""

    record: CommitRecord
    parks: bool
    """Whether everybody parks behind it."""
    broken: GroupBroken | None
    """What broke after it was committed: there is no next step in this generation."""


def run_step(place: Place, step: int, fence: Fence) -> CommittedStep:
    """Trains one step and applies it.

    Raises:
        GroupBroken: a peer is gone, or the groups were shut; nothing was applied.
        FencedError: the engine was fenced; nothing was applied.
        ExchangeMismatchError: somebody acts for another generation or step.
        RefusedStepError: the step must not be committed by anybody.
    """
    fence.check(place.generation)
    place.stopwatch.restart()
    place.sums.clear()
    place.ledger = Ledger(step=step, generation=place.generation)

    place.pipeline.run(place.ledger)
    place.reduction.run(place.ledger)
    agreed = place.agreement.run(_claim(place, fence.mark), step)
    place.stopwatch.lap("exchange")
    if agreed.outcome.verdict is not Verdict.COMMIT:
        raise RefusedStepError(agreed.outcome.verdict, agreed.outcome.layer, step)

    place.failpoints.hit("before_update", step)
    apply_step(place.job, place.store, place.sums, agreed.outcome.record)
    place.stopwatch.lap("update")
    return CommittedStep(record=agreed.outcome.record, parks=agreed.parks, broken=agreed.broken)


def apply_step(job: Job, store: LayerStore, sums: GradientSums, record: CommitRecord) -> None:
    """The second phase of a commit: clip and update every layer that is still of the step before.

    Also what a witness's record asks for, whoever was interrupted where: a layer that has the step
    already is left alone [2].
    """
    scale = gradient_scale(
        job.optimizer,
        unit=job.accumulation.unit,
        num_tokens=record.num_tokens,
        norm=record.gradient_norm,
    )
    for layer, total in sums.sums.items():
        if store.version(layer) == record.step:
            with store.updating(layer, record.step + 1) as state:
                update(state, total, config=job.optimizer, scale=scale, step=record.step)


def _claim(place: Place, mark: int) -> Message:
    """What this engine says in the exchange."""
    job, ledger = place.job, place.ledger
    unit = job.accumulation.unit
    layers = {
        layer: LayerClaim(
            squared_norm=squared_norm(job.layouts[layer], total, unit),
            num_counted=ledger.complete.get(layer, 0),
            in_range=layer not in ledger.out_of_range,
        )
        for layer, total in place.sums.sums.items()
    }
    return job.exchange_format.claim(
        generation=place.generation,
        step=ledger.step,
        mark=mark,
        layers=layers,
        losses={m: loss_units(loss.item()) for m, loss in ledger.losses.items()},
    )
