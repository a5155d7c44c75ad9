"""An engine's place in a plan, ready to train: stage, groups, sums and the four parts of a step."""

from collections.abc import Mapping
from dataclasses import dataclass

from planaria_worker.engine.agreement import Agreement
from planaria_worker.engine.communication import Group
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.job import Job
from planaria_worker.engine.ledger import Ledger
from planaria_worker.engine.numerics.accumulate import GradientSums
from planaria_worker.engine.pipeline import PipelineStage
from planaria_worker.engine.plan_view import PlanView
from planaria_worker.engine.reduction import Reduction
from planaria_worker.engine.state import LayerStore
from planaria_worker.engine.stopwatch import Stopwatch
from planaria_worker.models.stage import build_stage


@dataclass(slots=True, kw_only=True)
class Place:
    """What one generation needs; dropped whole when it ends, but for the sums."""

    job: Job
    view: PlanView
    generation: int
    store: LayerStore
    sums: GradientSums
    pipeline: PipelineStage
    reduction: Reduction
    agreement: Agreement
    stopwatch: Stopwatch
    failpoints: Failpoints
    ledger: Ledger


def take_place(
    *,
    job: Job,
    view: PlanView,
    generation: int,
    step: int,
    store: LayerStore,
    groups: Mapping[str, Group],
    fence: Fence,
    stopwatch: Stopwatch,
    failpoints: Failpoints,
) -> Place:
    """Puts a place together from the layers in the store and the groups that stand."""
    stage = build_stage(
        job.model, view.stage.first_layer, view.stage.num_layers, store.states, seed=job.seed
    )
    layouts = [job.layouts[layer] for layer in view.hosted_layers]
    sums = GradientSums(layouts, job.accumulation, str(job.device))
    forward_group = groups[view.forward_group.name] if view.forward_group else None
    backward_group = groups[view.backward_group.name] if view.backward_group else None
    return Place(
        job=job,
        view=view,
        generation=generation,
        store=store,
        sums=sums,
        pipeline=PipelineStage(
            job=job,
            view=view,
            stage=stage,
            sums=sums,
            forward_group=forward_group,
            backward_group=backward_group,
            stopwatch=stopwatch,
            failpoints=failpoints,
        ),
        reduction=Reduction(
            view=view,
            groups=groups,
            sums=sums.sums,
            num_microbatches=job.num_microbatches,
            stopwatch=stopwatch,
            failpoints=failpoints,
        ),
        agreement=Agreement(
            view=view,
            generation=generation,
            exchange_format=job.exchange_format,
            forward_group=forward_group,
            backward_group=backward_group,
            last_ranks_group=groups[view.last_ranks_group.name] if view.last_ranks_group else None,
            fence=fence,
            device=job.device,
            failpoints=failpoints,
        ),
        stopwatch=stopwatch,
        failpoints=failpoints,
        ledger=Ledger(step=step, generation=generation),
    )
