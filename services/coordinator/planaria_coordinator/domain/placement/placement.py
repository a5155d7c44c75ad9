"""A placement: a plan with the engine of each stage.

A job has several while its plan changes:

| name | what it is |
| --- | --- |
| `JobRun.placement` | what engines are to activate at once, or have all switched to |
| `JobRun.candidate` | during a switch: the one of the next generation, from before Switch is sent |
| `JobRun.in_force` | of these two, the one that engines have, as far as their reports tell |
| `Transition.target` | the one that a transition leads to, once there is a plan for it |

`Transition.target_steps` is no placement but a version: T*. A placement's `plan_to_change` is the
plan before the loss where it only finishes a step, and its own plan otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.placement.plan import Plan

StageEngines = tuple[tuple[str, ...], ...]
"""The engine of each stage of each pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A plan whose stages have engines."""

    generation: int
    plan: Plan
    stage_engines: StageEngines
    reason: str
    resume_time: datetime | None = None
    """When its first engine could compute; None while that is not known."""
    followers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By engine: the layers whose sums it takes part in, though it computes nothing."""
    step_microbatches: tuple[tuple[int, ...], ...] = ()
    """Of each pipeline, for the step that was in flight; empty where no step was kept."""
    first_generations: tuple[int, ...] = ()
    """The generation since which each pipeline has been as it is; empty: all since this one."""
    peak_flops_per_second: float = 0.0
    """Of the accelerators in the plan's pipelines together; 0: not all have been measured."""
    plan_before: Plan | None = None
    """The plan before the loss, where this one only finishes a step: the next one follows it."""

    @property
    def engine_ids(self) -> frozenset[str]:
        """Every engine that steps cannot do without."""
        placed = (engine_id for pipeline in self.stage_engines for engine_id in pipeline)
        return frozenset((*placed, *self.followers))

    @property
    def plan_to_change(self) -> Plan:
        """The plan that the planner changes next."""
        return self.plan_before or self.plan

    def first_generation(self, index: int) -> int:
        """Return the generation since which a pipeline has run unchanged."""
        return self.first_generations[index] if self.first_generations else self.generation


def peak_of(stage_engines: StageEngines, engines: Mapping[str, Engine]) -> float:
    """Return what the accelerators of pipelines can do together, in operations a second.

    Returns:
        0 if one of them has not been measured.
    """
    peaks = [engines[e].peak_flops_per_second for pipeline in stage_engines for e in pipeline]
    return sum(peaks) if all(peaks) else 0.0
