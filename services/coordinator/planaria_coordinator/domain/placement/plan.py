"""Plans: which pipelines a job runs, on which nodes, with which microbatches."""

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers on accelerators of one node."""

    first_layer: int
    num_layers: int
    node_index: int
    node_id: str
    accelerators: tuple[int, ...]

    @property
    def layers(self) -> range:
        """The layers, in order."""
        return range(self.first_layer, self.first_layer + self.num_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One full replica of the model on named nodes."""

    stages: tuple[Stage, ...]
    microbatches: tuple[int, ...]
    iteration_seconds: float
    max_microbatches: int = 0
    """Most of a step that fit in its memory; 0: memory never binds."""

    def room(self, num_microbatches: int) -> float:
        """How many more microbatches than these it can run in a step; mostly infinite."""
        if not self.max_microbatches:
            return math.inf
        return max(self.max_microbatches - num_microbatches, 0)

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Its nodes, each once, in stage order."""
        return tuple(dict.fromkeys(stage.node_id for stage in self.stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The pipelines of a job."""

    pipelines: tuple[Pipeline, ...]
    idle_node_ids: tuple[str, ...] = ()
    iteration_seconds: float = 0.0
    fault_tolerance: int = 0
    """How many nodes may be lost at the same instant with a replica of every layer left."""

    @property
    def stages(self) -> Iterator[Stage]:
        """All stages, pipeline by pipeline."""
        return (stage for pipeline in self.pipelines for stage in pipeline.stages)

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The nodes that it uses, each once."""
        return tuple(dict.fromkeys(stage.node_id for stage in self.stages))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each pipeline, the largest first: the templates in use."""
        return tuple(sorted((len(p.node_ids) for p in self.pipelines), reverse=True))


def same_pipelines(plan: Plan, other: Plan) -> bool:
    """Return whether two plans run the same pipelines, whatever their microbatches."""
    return {pipeline.stages for pipeline in plan.pipelines} == {
        pipeline.stages for pipeline in other.pipelines
    }


def plan_problem(
    plan: Plan, *, num_layers: int, num_microbatches: int, node_ids: frozenset[str]
) -> str | None:
    """Say in one sentence what makes a plan impossible, or None when it can be carried out."""
    if not plan.pipelines:
        return "the plan has no pipeline"
    strangers = sorted(set(plan.node_ids) - node_ids)
    if strangers:
        return f"the plan uses {', '.join(strangers)}, which the job does not have"
    seen: set[tuple[str, int]] = set()
    for index, pipeline in enumerate(plan.pipelines):
        next_layer = 0
        for stage in pipeline.stages:
            if stage.first_layer != next_layer or stage.num_layers < 1:
                return f"pipeline {index} does not cover the layers one after another"
            if len(stage.accelerators) != 1:
                return f"pipeline {index} has a stage on {len(stage.accelerators)} accelerators"
            if (stage.node_id, stage.accelerators[0]) in seen:
                return f"accelerator {stage.accelerators[0]} of {stage.node_id} is used twice"
            seen.add((stage.node_id, stage.accelerators[0]))
            next_layer += stage.num_layers
        if next_layer != num_layers:
            return f"pipeline {index} covers {next_layer} of {num_layers} layers"
        if not pipeline.microbatches:
            return f"pipeline {index} has no microbatch"
    given = sorted(m for pipeline in plan.pipelines for m in pipeline.microbatches)
    if given != list(range(num_microbatches)):
        return f"the plan does not run each of the {num_microbatches} microbatches exactly once"
    return None
