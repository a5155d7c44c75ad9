"""The ways to train one step that are compared, side by side in the same processes."""

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.overhead.configurations import Configuration
from benchmarks.overhead.plain import PlainPipeline
from benchmarks.overhead.reducer import Reducer
from benchmarks.overhead.torch_schedule import TorchPipeline
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.fence import Fence
from planaria_worker.engine.groups import Communicators, Groups
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.copy import CommitFeed
from planaria_worker.engine.layers.layer_store import LayerStore
from planaria_worker.engine.plan.plan import PipelineAssignment, StageAssignment
from planaria_worker.engine.plan.plan_view import PlanView, view_plan
from planaria_worker.engine.reduction.complete_sums import cut_into_buckets
from planaria_worker.engine.step.training_context import (
    EngineResources,
    TrainingContext,
    build_context,
)
from planaria_worker.engine.step.training_step import attempt, begin_step, compute
from planaria_worker.engine.telemetry import Stopwatch
from planaria_worker.models.stage import Stage, build_stage, hosted_layers
from planaria_worker.models.state import LayerState, initial_state

VARIANTS = {
    "reproducible": "Planaria, reproducible mode: fixed-point sums",
    "fast": "Planaria, fast mode: float32 sums",
    "plain": "the same schedule written plainly",
    "torch": "torch.distributed.pipelining, Schedule1F1B",
}
TIMEOUT_SECONDS = 120.0
GENERATION = 1

Step = Callable[[int], None]
"""Trains one step, given its number."""


class Rank:
    """One of the ranks: the stages of the first pipeline, then those of the next."""

    def __init__(self, rank: int, folder: Path, configuration: Configuration) -> None:
        self.pipeline, self.stage_index = divmod(rank, configuration.num_stages)
        self._rank = rank
        self._folder = folder
        self._configuration = configuration
        self._store_address = ""
        self._states: dict[str, Mapping[int, LayerState]] = {}
        self._pipeline_group: dist.ProcessGroup | None = None
        self._replicas: dist.ProcessGroup | None = None

    def connect(self, store_address: str) -> None:
        """Meets the other ranks."""
        self._store_address = store_address
        dist.init_process_group(
            "gloo",
            init_method=f"file://{self._folder / 'rendezvous'}",
            rank=self._rank,
            world_size=self._configuration.num_ranks,
            timeout=timedelta(seconds=TIMEOUT_SECONDS),
        )
        num_stages, num_ranks = self._configuration.num_stages, self._configuration.num_ranks
        for first in range(0, num_ranks, num_stages):
            group = dist.new_group(list(range(first, first + num_stages)))
            if first == self.pipeline * num_stages:
                self._pipeline_group = group
        for stage in range(num_stages):
            group = dist.new_group(list(range(stage, num_ranks, num_stages)))
            if stage == self.stage_index:
                self._replicas = group

    def build(self, variant: str) -> Step:
        """Everything that a variant needs, ready for its first step."""
        job = self._configuration.job(self._folder, reproducible=variant == "reproducible")
        view = self._view(job)
        states = {x: initial_state(job.model, x, seed=job.seed) for x in view.hosted_layers}
        self._states[variant] = states
        if variant in ("reproducible", "fast"):
            return self._planaria(job, view, states, variant)
        return self._without_tolerance(job, view, states, variant)

    def moments_norm(self, variant: str) -> float:
        """The norm of AdamW's first moments of all layers of this rank."""
        states = self._states[variant].values()
        return math.sqrt(sum(float(state.exp_avg.double().square().sum()) for state in states))

    def _planaria(
        self, job: Job, view: PlanView, states: Mapping[int, LayerState], variant: str
    ) -> Step:
        store = LayerStore()
        store.install(states, 0)
        resources = EngineResources(
            job=job,
            store=store,
            feed=CommitFeed(),
            fence=Fence(GENERATION),
            stopwatch=Stopwatch(),
            failpoints=Failpoints(),
        )
        context = build_context(
            resources,
            view=view,
            generation=GENERATION,
            step=0,
            groups=self._groups(view, variant),
            states=store.states,
        )
        return lambda step: _run_planaria(context, step)

    def _groups(self, view: PlanView, variant: str) -> Groups:
        communicators = Communicators(
            engine_id=view.engine_id,
            host="127.0.0.1",
            device=torch.device("cpu"),
            transport="gloo",
            operation_timeout_seconds=TIMEOUT_SECONDS,
            failpoints=Failpoints(),
        )
        return communicators.build(
            view.groups,
            store_address=self._store_address,
            prefix=f"{variant}/",
            timeout_seconds=TIMEOUT_SECONDS,
        )

    def _without_tolerance(
        self, job: Job, view: PlanView, states: Mapping[int, LayerState], variant: str
    ) -> Step:
        assert self._pipeline_group is not None
        assert self._replicas is not None
        context = view.stage
        stage = build_stage(
            job.model, context.first_layer, context.num_layers, states, seed=job.seed
        )
        reducer = Reducer(
            job,
            stage,
            len(view.pipeline.microbatches),
            _buckets(job, stage),
            self._replicas,
            self._pipeline_group,
        )
        microbatches = view.pipeline.microbatches
        if variant == "torch":
            return TorchPipeline(
                job,
                stage,
                reducer,
                microbatches,
                group=self._pipeline_group,
                stage_index=self.stage_index,
                num_stages=self._configuration.num_stages,
            ).run_step
        num_stages = self._configuration.num_stages
        num_behind = num_stages - 1 - self.stage_index
        return PlainPipeline(
            job,
            stage,
            reducer,
            microbatches,
            group=self._pipeline_group,
            before=self._rank - 1 if self.stage_index else None,
            behind=self._rank + 1 if num_behind else None,
            num_behind=num_behind,
        ).run_step

    def _view(self, job: Job) -> PlanView:
        return view_plan(
            _pipelines(job, self._configuration),
            f"{self.pipeline}.{self.stage_index}",
            num_layers=job.num_layers,
            num_microbatches=job.num_microbatches,
            hosted_layers=lambda first, num: hosted_layers(job.model, first, num),
        )


def _pipelines(job: Job, configuration: Configuration) -> list[PipelineAssignment]:
    """Equal stages, but for embedding and head, and the microbatches dealt out in turn."""
    num_pipelines, num_stages = configuration.num_pipelines, configuration.num_stages
    num_blocks = job.num_layers - 2
    cuts = [1 + num_blocks * stage // num_stages for stage in range(1, num_stages)]
    bounds = [0, *cuts, job.num_layers]
    return [
        PipelineAssignment(
            stages=tuple(
                StageAssignment(
                    engine_id=f"{pipeline}.{stage}",
                    data_address="",
                    first_layer=first,
                    num_layers=end - first,
                )
                for stage, (first, end) in enumerate(pairwise(bounds))
            ),
            microbatches=tuple(range(pipeline, job.num_microbatches, num_pipelines)),
        )
        for pipeline in range(num_pipelines)
    ]


def _run_planaria(context: TrainingContext, step: int) -> None:
    begin_step(context, step)
    compute(context, context.view.pipeline.microbatches)
    attempt(context)
    context.resources.fence.settle()


def _buckets(job: Job, stage: Stage) -> list[tuple[int, ...]]:
    """The layers of a stage, the highest first, cut as Planaria cuts them."""
    sizes = {layer: job.layouts[layer].num_elements for layer in stage.states}
    limit = job.bucket_bytes // torch.float32.itemsize
    buckets = cut_into_buckets(sorted(stage.states), sizes, limit)
    beginning = [tuple(piece.layer for piece in pieces if not piece.start) for pieces in buckets]
    return [layers for layers in beginning if layers]  # a large layer is not cut
