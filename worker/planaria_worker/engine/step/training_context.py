"""An engine's place in a plan, ready to train: stage, groups, sums and the four parts of a step."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from planaria_worker.engine.groups import Communicators, Group
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.numerics.norm import squared_norm
from planaria_worker.engine.plan.plan_view import PlanView
from planaria_worker.engine.process.failpoints import Failpoints
from planaria_worker.engine.process.stopwatch import Stopwatch
from planaria_worker.engine.recovery.fence import Fence
from planaria_worker.engine.reduction.gradient_reduction import Reduction
from planaria_worker.engine.step.commit_link import ExchangeLine
from planaria_worker.engine.step.pipeline_stage import PipelineStage
from planaria_worker.engine.step.step_progress import Ledger
from planaria_worker.engine.step.two_phase_commit import Agreement
from planaria_worker.models.stage import build_stage
from planaria_worker.models.state import LayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all places of an engine have in common."""

    job: Job
    store: LayerStore
    feed: CommitFeed
    fence: Fence
    stopwatch: Stopwatch
    failpoints: Failpoints


@dataclass(slots=True, kw_only=True)
class Place:
    """What an engine needs to train; dropped whole when its pipeline is broken.

    A pipeline that goes on in another generation keeps its place: stage, groups along the pipeline,
    local sums and ledger stay; what spans the pipelines is renewed.
    """

    around: Surroundings
    view: PlanView
    generation: int
    sums: GradientSums
    """The local sums, which become the whole ones; a follower adds nothing to them."""
    pipeline: PipelineStage | None
    """None for a follower."""
    pipeline_groups: tuple[Group, ...]
    exchange_line: ExchangeLine
    sum_groups: tuple[Group, ...]
    """Those across the pipelines, of this generation."""
    awaited: Communicators | None
    """What builds the groups across the pipelines, while they do not stand."""
    reduction: Reduction | None
    """None until they stand."""
    agreement: Agreement
    ledger: Ledger
    halt: threading.Event
    """Set by anybody: the pipeline stops at its next action, for good."""
    resumed_step: int | None = None
    """The step that other generations may have begun: some may have whole sums of it."""
    upcoming: deque[PlanView] = field(default_factory=deque)
    """Plans that finish the step in flight with this place: the thread that accepts directives adds
    them, the training thread takes them up. While there is one, everybody is fenced, and nobody can
    commit in the generation that the place has.
    """

    @property
    def reduced(self) -> Mapping[int, Tensor]:
        """The sums over all owners, of the layers that the ledger says are complete."""
        return {} if self.reduction is None else self.sums.totals

    @property
    def is_resuming(self) -> bool:
        return self.ledger.step == self.resumed_step

    def microbatches_ahead(self, microbatches: Sequence[int]) -> tuple[int, ...]:
        """What is to be computed here, behind these microbatches, by the next plan of the step."""
        if not self.upcoming:
            return ()
        missing = self.ledger.missing(self.upcoming[0].pipeline.first_microbatches)
        return tuple(m for m in missing if m not in microbatches)

    def trace(self) -> None:
        """Tells which layers it computes from now on, and with whom."""
        layers = self.view.computed_layers
        stages = () if self.view.is_follower else self.view.pipeline.stages
        self.around.stopwatch.trace.event(
            "place",
            generation=self.generation,
            first_layer=layers.start,
            num_layers=len(layers),
            pipeline=[stage.engine_id for stage in stages],
        )

    def shut_sums(self, reason: str) -> None:
        """Lets nobody wait for this engine across the pipelines.

        But for groups that were set aside: a fence wakes whoever waits in one.
        """
        for group in self.sum_groups:
            group.give_up(reason)


def take_place(
    around: Surroundings,
    *,
    view: PlanView,
    generation: int,
    step: int,
    groups: Mapping[str, Group],
    states: Mapping[int, LayerState],
    resumed_step: int | None = None,
) -> Place:
    """Puts a place together from the states of its layers and the groups that stand."""
    job = around.job
    exchange = view.exchange_group
    line = ExchangeLine(groups[exchange.name] if exchange else None)
    layouts = [job.layouts[layer] for layer in view.hosted_layers]
    sums = GradientSums(layouts, job.accumulation, str(job.device))
    halt = threading.Event()
    return Place(
        around=around,
        view=view,
        generation=generation,
        sums=sums,
        pipeline=None if view.is_follower else _pipeline(around, view, sums, groups, states, halt),
        pipeline_groups=tuple(groups[spec.name] for spec in view.pipeline_groups),
        exchange_line=line,
        sum_groups=tuple(groups[spec.name] for spec in view.sum_groups),
        awaited=None,
        reduction=_reduction(around, view, sums, groups),
        agreement=_agreement(around, view, generation, groups, line),
        ledger=Ledger(step=step, generation=generation),
        halt=halt,
        resumed_step=resumed_step,
    )


def renew_place(
    place: Place,
    *,
    view: PlanView,
    generation: int,
    awaited: Communicators,
    resumed_step: int | None = None,
) -> None:
    """Goes on with a place in another generation, whose groups are being built.

    Args:
        place: of the same pipeline.
        view: the new plan, seen from the same engine.
        generation: the new one.
        awaited: its groups across the pipelines.
        resumed_step: the step in flight, if the new generation finishes it.
    """
    place.view, place.generation = view, generation
    place.awaited, place.sum_groups = awaited, ()
    place.resumed_step = resumed_step
    place.reduction = None  # its buckets are those of the groups before
    place.agreement = _agreement(place.around, view, generation, {}, place.exchange_line)


def join_sums(place: Place) -> Reduction:
    """Waits until the groups across the pipelines stand, if they do not; returns what sums in them.

    Raises:
        GroupBroken: they were shut.
        PlanariaError: a peer did not come.
    """
    if place.reduction is not None:
        return place.reduction
    assert place.awaited is not None  # noqa: S101 - what else should there be no reduction for
    built = place.awaited.wait()
    place.awaited = None
    place.sum_groups = tuple(built.values())
    around, view = place.around, place.view
    place.reduction = _reduction(around, view, place.sums, built)
    place.agreement = _agreement(around, view, place.generation, built, place.exchange_line)
    return place.reduction


def _pipeline(
    around: Surroundings,
    view: PlanView,
    sums: GradientSums,
    groups: Mapping[str, Group],
    states: Mapping[int, LayerState],
    halt: threading.Event,
) -> PipelineStage:
    job, stage = around.job, view.stage
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
        forward_group=groups[view.forward_group.name] if view.forward_group else None,
        backward_group=groups[view.backward_group.name] if view.backward_group else None,
        halt=halt,
        stopwatch=around.stopwatch,
        failpoints=around.failpoints,
    )


def _reduction(
    around: Surroundings,
    view: PlanView,
    sums: GradientSums,
    groups: Mapping[str, Group],
) -> Reduction:
    job = around.job
    unit = job.accumulation.unit
    return Reduction(
        view=view,
        groups=groups,
        sums=sums,
        squared_norm=lambda layer, total: squared_norm(job.layouts[layer], total, unit),
        device=job.device,
        num_microbatches=job.num_microbatches,
        bucket_bytes=job.bucket_bytes,
        max_in_flight=job.buckets_in_flight,
        stopwatch=around.stopwatch,
        failpoints=around.failpoints,
    )


def _agreement(
    around: Surroundings,
    view: PlanView,
    generation: int,
    groups: Mapping[str, Group],
    line: ExchangeLine,
) -> Agreement:
    """Without the last ranks' group it does for an attempt that does not go across."""
    last_ranks = view.last_ranks_group
    return Agreement(
        view=view,
        generation=generation,
        exchange_format=around.job.exchange_format,
        line=line,
        last_ranks_group=groups.get(last_ranks.name) if last_ranks else None,
        fence=around.fence,
        device=around.job.device,
        failpoints=around.failpoints,
    )
