"""One training step, as in protocol/step.md: begin, compute, then attempt to reduce and commit.

    begin_step(context, step)
    compute(context, context.view.pipeline.microbatches)  # 1F1B; gradient sums begin meanwhile
    attempt(context)                                      # reduce, two-phase commit, apply

If the attempt is aborted, what was computed stays, and a new plan attempts the same step again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from planaria_common.errors import PlanariaError
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import GroupBroken
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.numerics.loss import loss_units
from planaria_worker.engine.numerics.optimizer import gradient_scale, update
from planaria_worker.engine.step.commit_messages import DecisionKind, LayerVote, Message
from planaria_worker.engine.step.pipeline_stage import Round
from planaria_worker.engine.step.training_context import TrainingContext, join_data_parallel
from planaria_worker.models.state import LayerState


class RefusedStepError(Exception):
    """All engines decided that this step must not be committed."""

    def __init__(self, kind: DecisionKind, layer: int, step: int) -> None:
        super().__init__(f"step {step} is not committed: {kind.name} in layer {layer}")
        self.kind = kind
        self.layer = layer
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep:
    """A step that was applied."""

    record: CommitRecord
    broken: GroupBroken | None
    """What broke after the commit: there is no next step in this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedAttempt:
    """A commit attempt that did not commit here: the local gradients wait for the next one."""

    cause: Exception | None
    """What kept this engine from it; None: another engine, or the next plan of the step."""


def begin_step(context: TrainingContext, step: int, num_skipped: int = 0) -> None:
    """Clear the local sums: nothing of the step is computed yet.

    Args:
        context: to train the step in.
        step: the one after the last commit.
        num_skipped: steps that were skipped in a row just before.
    """
    context.resources.stopwatch.restart(step)
    context.sums.clear()
    context.progress = context.progress.next_step(step, context.generation, num_skipped)


def compute(context: TrainingContext, microbatches: Sequence[int]) -> None:
    """Add the gradients of a round of microbatches to the local sums, and begin to reduce them.

    A follower has nothing to do.

    Raises:
        GroupBroken: the pipeline is broken, or was halted.
    """
    if context.pipeline is None or not microbatches:
        return

    def before_last_backward() -> None:
        if not context.next_plans and (
            context.groups_being_built is None or context.groups_being_built.is_over
        ):
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


def attempt(context: TrainingContext) -> CommittedStep | AbortedAttempt:
    """Reduce the local gradients of all owners, vote on the step, and apply it if it is committed.

    After a commit the fence is not settled: the caller notes the commit in its state first. If the
    next plan of the step is there already, the attempt is aborted at once.

    Raises:
        GroupBroken: the pipeline is broken; nothing was applied.
        CommitMismatchError: a peer acts for another generation or step.
        RefusedStepError: the step must not be committed by any engine.
    """
    step, resources = context.progress.step, context.resources
    if context.next_plans:
        context.shut_data_parallel("the step is finished in another generation")
        context.two_phase_commit.abort(step)
        return AbortedAttempt(cause=None)
    vote, cause = _reduce(context)
    result = context.two_phase_commit.run(vote, step)
    resources.stopwatch.lap("exchange")
    if result.is_committed:
        record = result.decision.record
        resources.failpoints.hit("before_update", step)
        apply_step(resources.job, resources.store, resources.feed, context.reduced, record)
        resources.stopwatch.lap("update")
        return CommittedStep(record=record, broken=result.broken)
    if result.decision.kind not in (DecisionKind.COMMIT, DecisionKind.FENCED):
        raise RefusedStepError(result.decision.kind, result.decision.layer, step)
    context.shut_data_parallel("the attempt was aborted")
    return AbortedAttempt(cause=cause or result.cause)


def apply_step(
    job: Job,
    store: LayerStore,
    feed: CommitFeed,
    sums: Mapping[int, Tensor],
    record: CommitRecord,
) -> None:
    """Clip and update every layer that is still of the step before: the second phase of a commit.

    Roll forward does the same from a witness's record, whatever interrupted the engine: a layer
    that has the step already is left alone [2]. A skipped step needs no sums: every layer that is
    held at the version before is at the next one as it is.
    """
    for layer in store.held() if record.is_skipped else sums:
        if store.version(layer) == record.step:
            total = None if record.is_skipped else sums[layer]
            with store.updating(layer, record.step + 1) as state:
                apply_sum(job, state, total, record)
            feed.publish(layer, record, total)


def apply_sum(job: Job, state: LayerState, total: Tensor | None, record: CommitRecord) -> None:
    """Update one layer with its complete sum: mean over the tokens, clipping, AdamW.

    A closing step has trained nothing, and changes nothing; a skipped step has no sum, and neither
    does it. AdamW's count of steps is the version, so a skipped step counts.
    """
    if job.is_closing(record.step) or total is None:
        return
    scale = gradient_scale(
        job.optimizer,
        unit=job.accumulation.unit,
        num_tokens=record.num_tokens,
        norm=record.gradient_norm,
    )
    update(state, total, config=job.optimizer, scale=scale, step=record.step)


def _reduce(context: TrainingContext) -> tuple[Message, Exception | None]:
    """Sum the gradients over all owners; return this engine's vote, and why it is `fenced`."""
    fence = context.resources.fence
    is_begun = context.reduction is not None and context.reduction.is_begun(context.progress)
    try:
        if not is_begun:
            _begin_sums(context)
        fence.check(context.generation)
        join_data_parallel(context).run()
    except (GroupBroken, FencedError, PlanariaError) as error:
        context.shut_data_parallel(str(error))
        return _fenced_vote(context), error.with_traceback(None)  # which would keep the groups
    if context.pipeline is not None:
        _trace_vote(context)
    return _vote(context, fence.mark), None


def _begin_sums(context: TrainingContext, last_microbatches: Sequence[int] = ()) -> None:
    """Begin to reduce the local sums, as soon as the groups across the pipelines are built.

    Args:
        context: whose local sums hold what `progress` lists as finished.
        last_microbatches: those whose passes are under way: the sums will hold them too.

    Raises:
        GroupBroken: the groups were shut.
        PlanariaError: a peer did not come.
    """
    context.progress.begin_attempt(context.generation)
    reduction = join_data_parallel(context)
    fence, generation = context.resources.fence, context.generation
    reduction.begin(
        context.progress,
        lambda: fence.check(generation),
        last_microbatches,
        is_resumed=context.is_resuming,
    )


def _vote(context: TrainingContext, mark: int) -> Message:
    progress, reduction = context.progress, context.reduction
    squared_norms = {} if reduction is None else reduction.squared_norms
    layers = {
        layer: LayerVote(
            squared_norm=square,
            num_counted=progress.complete.get(layer, 0),
            in_range=layer not in progress.out_of_range,
        )
        for layer, square in squared_norms.items()
    }
    return context.resources.vote_format.vote(
        generation=context.generation,
        step=progress.step,
        mark=mark,
        layers=layers,
        losses={m: loss_units(loss.item()) for m, loss in progress.losses.items()},
        evaluation_losses={
            m: loss_units(loss.item()) for m, loss in progress.evaluation_losses.items()
        },
        num_skipped=progress.num_skipped,
    )


def _fenced_vote(context: TrainingContext) -> Message:
    return context.resources.vote_format.fenced(
        generation=context.generation, step=context.progress.step
    )


def _trace_vote(context: TrainingContext) -> None:
    layers, progress = context.view.computed_layers, context.progress
    context.resources.stopwatch.trace.event(
        "vote",
        step=progress.step,
        generation=context.generation,
        first_layer=layers.start,
        num_layers=len(layers),
        microbatches=progress.finished,
    )
