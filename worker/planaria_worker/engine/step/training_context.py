"""What an engine needs to train in a plan: stage, groups, sums and two-phase commit."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups import Communicators, DataParallelGroup, Groups, PipelineLink
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.norm import squared_norm
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.reduction.gradient_reduction import GradientReduction
from planaria_worker.engine.step.commit_link import CommitLink
from planaria_worker.engine.step.commit_messages import VoteFormat
from planaria_worker.engine.step.pipeline_stage import PipelineStage
from planaria_worker.engine.step.two_phase_commit import TwoPhaseCommit
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.engine.telemetry import Stopwatch
from planaria_worker.models.stage import build_stage
from planaria_worker.models.state import LayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResources:
    """What all training contexts of an engine share."""

    job: Job
    store: LayerStore
    feed: CommitFeed
    fence: Fence
    stopwatch: Stopwatch
    failpoints: Failpoints

    @property
    def vote_format(self) -> VoteFormat:
        job = self.job
        return VoteFormat(
            num_layers=job.num_layers,
            num_microbatches=job.num_microbatches,
            num_tokens=job.tokens_per_step,
            is_reproducible=job.is_reproducible,
            max_skipped_steps=job.max_skipped_steps,
            evaluation=None if job.evaluation is None else job.evaluation.plan,
        )


@dataclass(slots=True, kw_only=True)
class TrainingContext:
    """What an engine needs to train; dropped when its pipeline is broken.

    A pipeline that goes on in another generation keeps its context: stage, groups along the
    pipeline, local sums and step progress stay; what spans the pipelines is renewed.
    """

    resources: EngineResources
    view: PlanView
    generation: int
    sums: GradientSums
    """The local sums, which become the complete ones; a follower adds nothing to them."""
    pipeline: PipelineStage | None
    """None for a follower."""
    pipeline_groups: tuple[PipelineLink, ...]
    commit_link: CommitLink
    data_parallel_groups: tuple[DataParallelGroup, ...]
    """The groups across the pipelines, of this generation."""
    groups_being_built: Communicators | None
    """What builds the groups across the pipelines, until they are built."""
    reduction: GradientReduction | None
    """None until the groups across the pipelines are built."""
    two_phase_commit: TwoPhaseCommit
    progress: StepProgress
    halt: threading.Event
    """Set by any thread: the pipeline stops at its next action, for good."""
    resumed_step: int | None = None
    """A step that an earlier generation may have begun: owners may have complete sums of it."""
    next_plans: deque[PlanView] = field(default_factory=deque)
    """Plans that finish the step in flight with this context: the control thread adds them, the
    training thread removes them. While there is one, all engines are fenced, and none can commit in
    the generation of this context.
    """

    @property
    def reduced(self) -> Mapping[int, Tensor]:
        """The sums over all owners, of the layers whose sum is complete."""
        return {} if self.reduction is None else self.sums.totals

    @property
    def is_resuming(self) -> bool:
        return self.progress.step == self.resumed_step

    def next_round(self, microbatches: Sequence[int]) -> tuple[int, ...]:
        """Return what the next plan of the step has this stage compute after these microbatches."""
        if not self.next_plans:
            return ()
        missing = self.progress.missing(self.next_plans[0].step_microbatches)
        return tuple(m for m in missing if m not in microbatches)

    def trace(self) -> None:
        """Trace which layers the engine computes from now on, and with which engines."""
        layers = self.view.computed_layers
        stages = () if self.view.is_follower else self.view.pipeline.stages
        self.resources.stopwatch.trace.event(
            "assignment",
            generation=self.generation,
            first_layer=layers.start,
            num_layers=len(layers),
            pipeline=[stage.engine_id for stage in stages],
        )

    def shut_data_parallel(self, reason: str) -> None:
        """Shut the groups across the pipelines, so that no peer waits for this engine in them.

        Idle groups are retained: a fence wakes the peers that wait in one.
        """
        for group in self.data_parallel_groups:
            group.shut_unless_retained(reason)


def build_context(
    resources: EngineResources,
    *,
    view: PlanView,
    generation: int,
    step: int,
    groups: Groups,
    states: Mapping[int, LayerState],
    resumed_step: int | None = None,
) -> TrainingContext:
    """Build a context from the states of its layers and the groups of its plan."""
    job = resources.job
    commit_group = view.commit_group
    commit_link = CommitLink(groups.links[commit_group.name] if commit_group else None)
    layouts = [job.layouts[layer] for layer in view.hosted_layers]
    sums = GradientSums(layouts, job.accumulation, str(job.device))
    halt = threading.Event()
    return TrainingContext(
        resources=resources,
        view=view,
        generation=generation,
        sums=sums,
        pipeline=None
        if view.is_follower
        else _pipeline(resources, view, sums, groups.links, states, halt),
        pipeline_groups=tuple(groups.links[spec.name] for spec in view.pipeline_groups),
        commit_link=commit_link,
        data_parallel_groups=tuple(
            groups.data_parallel[spec.name] for spec in view.data_parallel_groups
        ),
        groups_being_built=None,
        reduction=_reduction(resources, view, sums, groups.data_parallel),
        two_phase_commit=_two_phase_commit(
            resources, view, generation, groups.data_parallel, commit_link
        ),
        progress=StepProgress(step=step, generation=generation),
        halt=halt,
        resumed_step=resumed_step,
    )


def renew_context(
    context: TrainingContext,
    *,
    view: PlanView,
    generation: int,
    groups_being_built: Communicators,
    resumed_step: int | None = None,
) -> None:
    """Continue a context in another generation, whose groups are being built.

    Args:
        context: of the same pipeline.
        view: the new plan, as the same engine sees it.
        generation: the new one.
        groups_being_built: its groups across the pipelines.
        resumed_step: the step in flight, if the new generation finishes it.
    """
    context.view, context.generation = view, generation
    context.groups_being_built, context.data_parallel_groups = groups_being_built, ()
    context.resumed_step = resumed_step
    context.reduction = None  # its buckets belong to the old groups
    context.two_phase_commit = _two_phase_commit(
        context.resources, view, generation, {}, context.commit_link
    )


def join_data_parallel(context: TrainingContext) -> GradientReduction:
    """Wait until the groups across the pipelines are built; return the reduction in them.

    Raises:
        GroupBroken: they were shut.
        PlanariaError: a peer did not come.
    """
    if context.reduction is not None:
        return context.reduction
    assert context.groups_being_built is not None  # noqa: S101 - else there is a reduction
    built = context.groups_being_built.wait().data_parallel
    context.groups_being_built = None
    context.data_parallel_groups = tuple(built.values())
    resources, view = context.resources, context.view
    context.reduction = _reduction(resources, view, context.sums, built)
    context.two_phase_commit = _two_phase_commit(
        resources, view, context.generation, built, context.commit_link
    )
    return context.reduction


def _pipeline(
    resources: EngineResources,
    view: PlanView,
    sums: GradientSums,
    links: Mapping[str, PipelineLink],
    states: Mapping[int, LayerState],
    halt: threading.Event,
) -> PipelineStage:
    job, stage = resources.job, view.stage
    return PipelineStage(
        job=job,
        view=view,
        stage=build_stage(
            job.model,
            stage.first_layer,
            stage.num_layers,
            states,
            seed=job.seed,
            activation_checkpointing=job.activation_checkpointing,
        ),
        sums=sums,
        forward_group=links[view.forward_group.name] if view.forward_group else None,
        backward_group=links[view.backward_group.name] if view.backward_group else None,
        halt=halt,
        stopwatch=resources.stopwatch,
        failpoints=resources.failpoints,
    )


def _reduction(
    resources: EngineResources,
    view: PlanView,
    sums: GradientSums,
    groups: Mapping[str, DataParallelGroup],
) -> GradientReduction:
    job = resources.job
    unit = job.accumulation.unit
    return GradientReduction(
        view=view,
        groups=groups,
        sums=sums,
        squared_norm=lambda layer, total: squared_norm(job.layouts[layer], total, unit),
        device=job.device,
        num_microbatches=job.num_microbatches,
        bucket_bytes=job.bucket_bytes,
        max_in_flight=job.buckets_in_flight,
        stopwatch=resources.stopwatch,
        failpoints=resources.failpoints,
    )


def _two_phase_commit(
    resources: EngineResources,
    view: PlanView,
    generation: int,
    groups: Mapping[str, DataParallelGroup],
    commit_link: CommitLink,
) -> TwoPhaseCommit:
    """Until the plan's last ranks' group is built, only `abort` and `fenced` votes are possible."""
    last_ranks = view.last_ranks_group
    return TwoPhaseCommit(
        view=view,
        generation=generation,
        vote_format=resources.vote_format,
        commit_link=commit_link,
        last_ranks_group=groups.get(last_ranks.name) if last_ranks else None,
        fence=resources.fence,
        device=resources.job.device,
        failpoints=resources.failpoints,
    )
