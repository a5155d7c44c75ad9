"""Questions to the planner: for the change under way, early, and for faults yet to come."""

from datetime import datetime

from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.model_profile import plan_nodes, planning_problem
from planaria_coordinator.domain.job.turn import Turn
from planaria_coordinator.domain.placement.planner_query import PlanQuery
from planaria_coordinator.domain.placement.replicas import (
    Holdings,
    holdings_by_node,
    holdings_of_placement,
)
from planaria_coordinator.domain.recovery.transition import (
    Cause,
    Phase,
)

_LEAST_HORIZON_SECONDS = 60.0
_FIRST_HORIZON_SECONDS = 3600.0
"""Until a first node is lost nobody knows how often that happens here."""


def nodes_to_plan_on(run: JobRun) -> tuple[str, ...]:
    """Return the nodes that may have a place: draining ones only when it does not go without."""
    staying = tuple(n for n in run.usable_nodes if n not in run.draining)
    return staying if len(staying) >= run.nodes_per_replica else run.usable_nodes


def plan_query(run: JobRun, holdings: Holdings) -> PlanQuery:
    """Return the question to the planner about the transition under way."""
    transition = run.transition
    if transition is None:
        raise AssertionError("a plan is asked for within a transition")
    return make_query(
        run,
        holdings,
        horizon_seconds=transition.horizon_seconds,
        fault_tolerance=transition.fault_tolerance,
    )


def make_query(
    run: JobRun, holdings: Holdings, *, horizon_seconds: float, fault_tolerance: int | None = None
) -> PlanQuery:
    """Return a question to the planner about the nodes that a job has now.

    Args:
        run: the job.
        holdings: by engine, the layers worth copying.
        horizon_seconds: the expected time to the next change.
        fault_tolerance: what is asked for instead of what the job wants.
    """
    node_ids = nodes_to_plan_on(run)
    problem = planning_problem(
        run.requirements,
        {node_id: run.nodes[node_id] for node_id in node_ids},
        run.prepared_engines.values(),
        fault_tolerance=fault_tolerance,
    )
    return PlanQuery(
        problem=problem,
        nodes=plan_nodes(run.nodes, node_ids),
        current=run.in_force.plan_to_change if run.in_force else None,
        holdings=holdings_by_node(holdings, run.engines),
        horizon_seconds=horizon_seconds if run.placement else 0.0,
    )


def begin_online_planning(turn: Turn) -> None:
    """Ask the planner while engines train; the plan says how they come to their assignments."""
    turn.enter(Phase.PLANNING, "the planner is asked while training continues", plans_online=True)
    ask_early(turn)


def ask_early(turn: Turn) -> None:
    """Ask the planner before the reports are in, supposing that everyone holds what it should."""
    run = turn.run
    enough = len(nodes_to_plan_on(run)) >= run.nodes_per_replica
    if run.placement is None or run.pause_wanted or not enough:
        return
    if turn.transition.history.cause is Cause.FINISHED:
        return
    expected = holdings_of_placement(run.placement, run.prepared_engines, run.requirements)
    turn.ask(plan_query(run, expected))


def contingency_query(run: JobRun, now: datetime) -> PlanQuery | None:
    """Return what would be asked after the next loss, if all nodes were still there.

    None while the job does not train by a plan that is there to stay, or could not go on.
    """
    placement = run.placement
    enough = len(nodes_to_plan_on(run)) > run.nodes_per_replica
    if placement is None or run.transition is not None or not enough:
        return None
    if run.state is not JobState.RUNNING or run.pause_wanted:
        return None
    holdings = holdings_of_placement(placement, run.prepared_engines, run.requirements)
    horizon = horizon_seconds(run, now, num_further_faults=1)
    return make_query(run, holdings, horizon_seconds=horizon)


def horizon_seconds(run: JobRun, now: datetime, *, num_further_faults: int = 0) -> float:
    """Return the expected time to the next change (H of planning.md 5)."""
    num_faults = run.num_faults + num_further_faults
    if not num_faults or run.start_time is None:
        return _FIRST_HORIZON_SECONDS
    elapsed = (now - run.start_time).total_seconds()
    return max(_LEAST_HORIZON_SECONDS, elapsed / num_faults)
