"""What every planning request states about a job, and the plan that answers it."""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from planaria_common.errors import ErrorReason, PlanariaError, invalid
from planaria_planner.cost.cost_model import PipelineCost, Stage
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.plans.objective import iteration_seconds
from planaria_planner.plans.pipeline_search import share_microbatches

MAX_MICROBATCHES = 1 << 20
"""The most microbatches of a step: a plan names each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A job to be planned.

    Attributes:
        profile: the model and the hardware.
        num_microbatches: microbatches of one step (M).
        fault_tolerance: how many nodes may be lost at once (f).
        min_nodes_per_pipeline: the fewest nodes of a pipeline; memory may ask for more.
        max_stage_accelerators: the most accelerators of a stage, None for no limit.

    Raises:
        PlanariaError: INVALID_ARGUMENT or NOT_ENOUGH_MICROBATCHES, naming what is wrong.
    """

    profile: ModelProfile
    num_microbatches: int
    fault_tolerance: int = 0
    min_nodes_per_pipeline: int = 0
    max_stage_accelerators: int | None = None

    def __post_init__(self) -> None:
        _within("num_microbatches", self.num_microbatches, 1, MAX_MICROBATCHES)
        _within("fault_tolerance", self.fault_tolerance, 0, None)
        _within("min_nodes_per_pipeline", self.min_nodes_per_pipeline, 0, None)
        if self.max_stage_accelerators is not None:
            _within("max_stage_accelerators", self.max_stage_accelerators, 1, None)
        if self.num_microbatches <= self.fault_tolerance:
            have, need = self.num_microbatches, self.fault_tolerance + 1
            raise PlanariaError(
                ErrorReason.NOT_ENOUGH_MICROBATCHES,
                f"not enough microbatches: have {have}, need {need}, one for each pipeline that"
                f" a fault tolerance of {self.fault_tolerance} asks for",
                {"have": str(have), "need": str(need)},
            )


def _within(field: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        expected = f"at least {least}" if most is None else f"from {least} to {most}"
        problem = f"{value} is out of range; expected {expected}"
        raise invalid(field, problem, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One instance of a template on named nodes: a full replica of the model.

    Attributes:
        node_ids: the nodes in pipeline order; a stage's `node` is an index into it.
        stages: in layer order.
        microbatches: ids of the microbatches it runs in each step.
        cost: a, b and the microbatches that fit, on these very nodes.
    """

    node_ids: tuple[str, ...]
    stages: tuple[Stage, ...]
    microbatches: range
    cost: PipelineCost

    @property
    def iteration_seconds(self) -> float:
        """Seconds of one step of this pipeline."""
        return self.cost.iteration_seconds(len(self.microbatches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The pipelines of a job.

    Attributes:
        pipelines: ordered by their smallest node id; each microbatch is in exactly one.
        idle_node_ids: nodes that are left idle, sorted.
        iteration_seconds: seconds of one step, those of the slowest pipeline.
    """

    pipelines: tuple[Pipeline, ...]
    idle_node_ids: tuple[str, ...]
    iteration_seconds: float

    @property
    def fault_tolerance(self) -> int:
        """How many nodes may be lost at once with a replica of every layer left."""
        return len(self.pipelines) - 1


def sizes_in_words(sizes: Iterable[int]) -> str:
    """Return what a person calls pipelines of these numbers of nodes: `2 x 3 + 1 x 2 nodes`."""
    counts = Counter(sizes)
    return " + ".join(f"{counts[n]} x {n}" for n in sorted(counts, reverse=True)) + " nodes"


PlacedStages = tuple[tuple[str, ...], tuple[Stage, ...], PipelineCost]
"""A pipeline before it has its microbatches: nodes, stages, cost on these nodes."""


def make_plan(
    placed: Iterable[PlacedStages], num_microbatches: int, idle_node_ids: Iterable[str]
) -> Plan:
    """Share the microbatches among placed pipelines, each a run of consecutive ids."""
    ordered = sorted(placed, key=lambda pipeline: min(pipeline[0]))
    costs = [cost for _, _, cost in ordered]
    shares = share_microbatches(costs, num_microbatches)
    ends = list(itertools.accumulate(shares))
    return Plan(
        pipelines=tuple(
            Pipeline(
                node_ids=node_ids,
                stages=stages,
                microbatches=range(end - share, end),
                cost=cost,
            )
            for (node_ids, stages, cost), share, end in zip(ordered, shares, ends, strict=True)
        ),
        idle_node_ids=tuple(sorted(idle_node_ids)),
        iteration_seconds=iteration_seconds(costs, shares),
    )
