"""Whole training steps of all layers on one accelerator: what the cost model is checked with."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from planaria_common.measurement import StepMeasurement
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups import Groups
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.plan.plan import PipelineAssignment, StageAssignment
from planaria_worker.engine.plan.plan_view import view_plan
from planaria_worker.engine.step.training_context import (
    EngineResources,
    TrainingContext,
    build_context,
)
from planaria_worker.engine.step.training_step import attempt, begin_step, compute
from planaria_worker.engine.telemetry import Stopwatch
from planaria_worker.models.stage import hosted_layers
from planaria_worker.models.state import initial_state
from planaria_worker.profiling.timing import timing

_ENGINE = "profiler"
_GENERATION = 1


def measure_steps(
    job: Job, num_steps: int, max_microbatches: int, one_done: Callable[[], None] = lambda: None
) -> StepMeasurement:
    """Trains by the engine's own step, alone in its plan, after one step of warm-up."""
    job = replace(job, num_microbatches=min(job.num_microbatches, max_microbatches))
    context = _context(job)
    samples = []
    for step in range(num_steps + 1):
        start = _now(job)
        begin_step(context, step)
        compute(context, context.view.pipeline.microbatches)
        attempt(context)
        context.resources.fence.settle()
        samples.append(_now(job) - start)
        one_done()
    return StepMeasurement(num_microbatches=job.num_microbatches, step=timing(samples[1:]))


def _context(job: Job) -> TrainingContext:
    """All layers in one stage, and no group: nobody else holds them."""
    stage = StageAssignment(
        engine_id=_ENGINE, data_address="", first_layer=0, num_layers=job.num_layers
    )
    pipeline = PipelineAssignment(stages=(stage,), microbatches=tuple(range(job.num_microbatches)))
    view = view_plan(
        [pipeline],
        _ENGINE,
        num_layers=job.num_layers,
        num_microbatches=job.num_microbatches,
        hosted_layers=lambda first, num: hosted_layers(job.model, first, num),
    )
    device, dtype = str(job.device), job.compute_dtype
    store = LayerStore()
    store.install(
        {
            layer: initial_state(
                job.model, layer, seed=job.seed, device=device, compute_dtype=dtype
            )
            for layer in range(job.num_layers)
        },
        version=0,
    )
    resources = EngineResources(
        job=job,
        store=store,
        feed=CommitFeed(),
        fence=Fence(_GENERATION),
        stopwatch=Stopwatch(),
        failpoints=Failpoints(),
    )
    return build_context(
        resources,
        view=view,
        generation=_GENERATION,
        step=0,
        groups=Groups(links={}, data_parallel={}),
        states=store.states,
    )


def _now(job: Job) -> float:
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)
    return time.perf_counter()
