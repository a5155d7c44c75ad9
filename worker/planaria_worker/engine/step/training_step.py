"""One training step, as in protocol/step.md: compute, reduce, agree, commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from planaria_common.errors import PlanariaError
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.numerics.loss import loss_units
from planaria_worker.engine.numerics.optimizer import gradient_scale, update
from planaria_worker.engine.recovery.fence import FencedError
from planaria_worker.engine.step.commit_messages import LayerClaim, Message, Verdict
from planaria_worker.engine.step.commit_record import CommitRecord
from planaria_worker.engine.step.pipeline_stage import Round
from planaria_worker.engine.step.training_context import TrainingContext, join_sums
from planaria_worker.models.state import LayerState


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
    broken: GroupBroken | None
    """What broke after it was committed: there is no next step in this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidAttempt:
    """An attempt that was not committed here: the local gradients wait for the next one."""

    cause: Exception | None
    """What kept this engine from it; None: somebody else, or the next plan of the step."""


def run_step(context: TrainingContext, step: int) -> CommittedStep:
    """Trains one whole step and applies it.

    Raises:
        GroupBroken: a peer is gone, or the groups were shut; nothing was applied.
        FencedError: the engine was fenced; nothing was applied.
        ExchangeMismatchError: somebody acts for another generation or step.
        RefusedStepError: the step must not be committed by anybody.
    """
    begin_step(context, step)
    compute(context, context.view.pipeline.microbatches)
    done = attempt(context)
    fence = context.resources.fence
    fence.settle()
    if isinstance(done, VoidAttempt):
        raise done.cause or FencedError(context.generation, fence.newest)
    return done


def begin_step(context: TrainingContext, step: int) -> None:
    """Nothing of the step is computed yet."""
    context.resources.stopwatch.restart(step)
    context.sums.clear()
    context.progress = context.progress.behind(step, context.generation)


def compute(context: TrainingContext, microbatches: Sequence[int]) -> None:
    """Adds the gradients of the step's last microbatches to the local sums, and begins to sum them.

    A follower has nothing to do.

    Raises:
        GroupBroken: the pipeline is not whole any more, or was halted.
    """
    if context.pipeline is None or not microbatches:
        return

    def before_last_backward() -> None:
        if not context.upcoming and (context.awaited is None or context.awaited.is_over):
            try:
                _begin_sums(context, microbatches[-1:])
            except (GroupBroken, PlanariaError) as error:
                error.with_traceback(None)  # `_reduce` meets it again; the groups may keep it

    def when_summed(layer: int) -> None:
        if context.reduction is not None:
            context.reduction.complete(layer)

    round_ = Round(
        microbatches=tuple(microbatches),
        next_round=lambda: context.next_round(microbatches),
        before_last_backward=before_last_backward,
        when_summed=when_summed,
    )
    with context.resources.fence.computing():
        context.pipeline.run(context.progress, round_)
        if context.halt.is_set():
            raise GroupBroken("the pipeline was halted")


def attempt(context: TrainingContext) -> CommittedStep | VoidAttempt:
    """Sums the local gradients of all owners, agrees on them, and applies them.

    After a commit the fence is not settled: the caller enters the commit in its account first.
    Where the next plan of the step is there, all of it is over at once, void.

    Raises:
        GroupBroken: the pipeline is not whole any more; nothing was applied.
        ExchangeMismatchError: somebody acts for another generation or step.
        RefusedStepError: the step must not be committed by anybody.
    """
    step, stopwatch = context.progress.step, context.resources.stopwatch
    if context.upcoming:
        context.shut_sums("the step is finished in another generation")
        context.two_phase_commit.call_off(step)
        return VoidAttempt(cause=None)
    claim, cause = _reduce(context)
    agreed = context.two_phase_commit.run(claim, step)
    stopwatch.lap("exchange")
    verdict = agreed.outcome.verdict
    if agreed.is_passed:
        context.resources.failpoints.hit("before_update", step)
        resources = context.resources
        apply_step(
            resources.job, resources.store, resources.feed, context.reduced, agreed.outcome.record
        )
        stopwatch.lap("update")
        return CommittedStep(record=agreed.outcome.record, broken=agreed.broken)
    if verdict not in (Verdict.COMMIT, Verdict.FENCED):
        raise RefusedStepError(verdict, agreed.outcome.layer, step)
    context.shut_sums("the attempt is void")
    return VoidAttempt(cause=cause or agreed.cause)


def _reduce(context: TrainingContext) -> tuple[Message, Exception | None]:
    """What this engine says in the exchange, and why it is no claim, if it is none."""
    fence = context.resources.fence
    is_begun = context.reduction is not None and context.reduction.is_begun(context.progress)
    try:
        if not is_begun:
            _begin_sums(context)
        fence.check(context.generation)
        join_sums(context).run()
    except (GroupBroken, FencedError, PlanariaError) as error:
        context.shut_sums(str(error))
        return _fenced(context), error.with_traceback(None)  # which would keep the groups
    if context.pipeline is not None:
        _trace_claim(context)
    return _claim(context, fence.mark), None


def _trace_claim(context: TrainingContext) -> None:
    layers, progress = context.view.computed_layers, context.progress
    context.resources.stopwatch.trace.event(
        "claim",
        step=progress.step,
        generation=context.generation,
        first_layer=layers.start,
        num_layers=len(layers),
        microbatches=progress.finished,
    )


def _begin_sums(context: TrainingContext, upcoming: Sequence[int] = ()) -> None:
    """Begins the attempt, as soon as the groups across the pipelines stand.

    Args:
        context: whose local sums hold what `progress` says is finished.
        upcoming: microbatches that they will hold besides, when they are said to be complete.

    Raises:
        GroupBroken: the groups were shut.
        PlanariaError: a peer did not come.
    """
    context.progress.begin_attempt(context.generation)
    reduction = join_sums(context)
    fence, generation = context.resources.fence, context.generation
    reduction.begin(
        context.progress,
        lambda: fence.check(generation),
        upcoming,
        is_resumed=context.is_resuming,
    )


def _fenced(context: TrainingContext) -> Message:
    return context.resources.job.exchange_format.fenced(
        generation=context.generation, step=context.progress.step
    )


def apply_step(
    job: Job,
    store: LayerStore,
    feed: CommitFeed,
    sums: Mapping[int, Tensor],
    record: CommitRecord,
) -> None:
    """The second phase of a commit: clip and update every layer that is still of the step before.

    Also what a witness's record asks for, whoever was interrupted where: a layer that has the step
    already is left alone [2].
    """
    for layer, total in sums.items():
        if store.version(layer) == record.step:
            with store.updating(layer, record.step + 1) as state:
                apply_sum(job, state, total, record)
            feed.publish(layer, record, total)


def apply_sum(job: Job, state: LayerState, total: Tensor, record: CommitRecord) -> None:
    """Updates one layer with its whole sum: mean over the tokens, clipping, AdamW.

    A closing step has trained nothing, and changes nothing.
    """
    if job.is_closing(record.step):
        return
    scale = gradient_scale(
        job.optimizer,
        unit=job.accumulation.unit,
        num_tokens=record.num_tokens,
        norm=record.gradient_norm,
    )
    update(state, total, config=job.optimizer, scale=scale, step=record.step)


def _claim(context: TrainingContext, mark: int) -> Message:
    """What this engine says in the exchange."""
    job, progress, reduction = context.resources.job, context.progress, context.reduction
    squared_norms = {} if reduction is None else reduction.squared_norms
    layers = {
        layer: LayerClaim(
            squared_norm=square,
            num_counted=progress.complete.get(layer, 0),
            in_range=layer not in progress.out_of_range,
        )
        for layer, square in squared_norms.items()
    }
    return job.exchange_format.claim(
        generation=context.generation,
        step=progress.step,
        mark=mark,
        layers=layers,
        losses={m: loss_units(loss.item()) for m, loss in progress.losses.items()},
        evaluation_losses={
            m: loss_units(loss.item()) for m, loss in progress.evaluation_losses.items()
        },
    )
