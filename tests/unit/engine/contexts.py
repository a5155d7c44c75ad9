"""Training contexts of every engine of a plan, with groups in memory, each on a thread."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.job import Job, open_job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.plan.plan import (
    FollowerAssignment,
    PipelineAssignment,
    stage_assignments,
)
from planaria_worker.engine.plan.plan_view import view_plan
from planaria_worker.engine.step.training_context import (
    EngineResources,
    TrainingContext,
    build_context,
)
from planaria_worker.engine.step.training_step import (
    CommittedStep,
    attempt,
    begin_step,
    compute,
)
from planaria_worker.engine.telemetry import Stopwatch
from planaria_worker.models.stage import hosted_layers
from planaria_worker.models.state import initial_state
from support.engines.training_jobs import training_job
from support.memory_groups import MemoryGroup, connect

GENERATION = 1


def make_job(folder: Path, model: Mapping[str, Any], *, reproducible: bool) -> Job:
    files = training_job(
        folder, num_blocks=3, num_microbatches=5, reproducible=reproducible, **model
    ).files
    return open_job("job", json.dumps(files.spec), files.data_path, torch.device("cpu"))


def build_contexts(
    job: Job,
    plan: Sequence[PipelineAssignment],
    kind: type[MemoryGroup] = MemoryGroup,
    *,
    followers: Sequence[FollowerAssignment] = (),
    resumed_step: int | None = None,
) -> list[TrainingContext]:
    """The contexts of all engines of a plan, before the first step."""
    hosted = lambda first, count: hosted_layers(job.model, first, count)  # noqa: E731
    engine_ids = [stage.engine_id for stage in stage_assignments(plan)]
    views = [
        view_plan(
            plan,
            engine_id,
            num_layers=job.num_layers,
            num_microbatches=job.num_microbatches,
            hosted_layers=hosted,
            followers=followers,
        )
        for engine_id in (*engine_ids, *(follower.engine_id for follower in followers))
    ]
    groups = connect({view.engine_id: view.groups for view in views}, kind)
    contexts = []
    for view in views:
        store = LayerStore()
        states = {x: initial_state(job.model, x, seed=job.seed) for x in view.hosted_layers}
        store.install(states, 0)
        contexts.append(
            build_context(
                EngineResources(
                    job=job,
                    store=store,
                    feed=CommitFeed(),
                    fence=Fence(GENERATION),
                    stopwatch=Stopwatch(),
                    failpoints=Failpoints(),
                ),
                view=view,
                generation=GENERATION,
                step=0,
                groups=groups[view.engine_id],
                states=store.states,
                resumed_step=resumed_step,
            )
        )
    return contexts


def run_one_step(
    job: Job, plan: Sequence[PipelineAssignment]
) -> list[tuple[TrainingContext, CommittedStep]]:
    """One step of every engine of a plan, each on a thread."""
    return run_contexts(build_contexts(job, plan))


def run_contexts(
    contexts: Sequence[TrainingContext],
) -> list[tuple[TrainingContext, CommittedStep]]:
    with ThreadPoolExecutor(len(contexts)) as threads:
        done = list(threads.map(lambda context: run_step(context, 0), contexts))
    return list(zip(contexts, done, strict=True))


def run_steps(contexts: Sequence[TrainingContext]) -> list[CommitRecord]:
    """Two steps of every engine of a plan: the second begins with what the first has made."""

    def run(context: TrainingContext) -> list[CommitRecord]:
        return [run_step(context, step).record for step in range(2)]

    with ThreadPoolExecutor(len(contexts)) as threads:
        return [record for records in threads.map(run, contexts) for record in records]


def run_step(context: TrainingContext, step: int) -> CommittedStep:
    """A whole step that must commit; an aborted attempt fails the test."""
    begin_step(context, step)
    if not context.view.is_follower:
        compute(context, context.view.pipeline.microbatches)
    done = attempt(context)
    context.resources.fence.settle()
    assert isinstance(done, CommittedStep)
    return done
