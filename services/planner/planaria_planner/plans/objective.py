"""The planner's objective: what makes one plan better than another (planning.md 4 and 5).

A new job gets the plan with the shortest step. After a change of nodes the plan that completes the
most steps within the horizon wins, the time to get there included.

`pipeline_search`, `problem` and `next_best` compute a plan's step by `iteration_seconds`;
`changes/reconfigure` compares plans after a change by `steps_within_horizon`.
"""

from collections.abc import Sequence

from planaria_planner.cost.cost_model import PipelineCost


def iteration_seconds(costs: Sequence[PipelineCost], num_microbatches: Sequence[int]) -> float:
    """Return the seconds of a step: the largest a + b*m over the pipelines."""
    return max(cost.iteration_seconds(m) for cost, m in zip(costs, num_microbatches, strict=True))


def steps_within_horizon(
    horizon_seconds: float, transition_seconds: float, iteration_seconds: float
) -> float:
    """Return (H - s) / T: the steps that a plan completes before the next change is expected.

    Args:
        horizon_seconds: expected seconds to the next change (H).
        transition_seconds: predicted seconds until the plan runs (s).
        iteration_seconds: predicted seconds of one step (T).
    """
    return max(horizon_seconds - transition_seconds, 0.0) / iteration_seconds
