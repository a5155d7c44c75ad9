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
