"""Asking for a plan: the planner first, then the user's scheduler where there is one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.ports import (
    Planner,
    PlanQuestion,
    PolicyView,
    SchedulingPolicy,
)
from planaria_coordinator.application.scheduling.policy import DEFAULT_SCHEDULER
from planaria_coordinator.domain.job.signals import PlanArrived, PlanRefused
from planaria_coordinator.domain.placement.check_plan import (
    completed_plan,
    plan_problem,
    with_node_indices,
)
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery

log = get_logger("planning")

Tell = Callable[[str, str], Awaitable[None]]
"""Makes an event: its type and its message."""


async def ask_for_plan(
    query: PlanQuery,
    *,
    planner: Planner,
    policy: SchedulingPolicy,
    scheduler: str,
    view: Callable[[], PolicyView],
    tell: Tell,
    retry_seconds: float,
    min_fault_tolerance: int,
    known: PlanAnswer | None = None,
) -> PlanArrived | PlanRefused:
    """Return a plan, or why there is none; waits for a planner for as long as it takes.

    Args:
        query: the question.
        planner: the planner.
        policy: decides between the planner's proposal and a scheduler's plan.
        scheduler: the job's scheduler.
        view: what the policy is shown.
        tell: makes an event of the job.
        retry_seconds: how long to wait before a planner that did not answer is asked again.
        min_fault_tolerance: what a scheduler's plan must survive at least, if it can be had.
        known: the planner's answer, when it was asked before anything happened.
    """
    told = False
    while True:
        try:
            answer = known or await planner.plan(query)
            break
        except PlanariaError as error:
            if error.reason is not ErrorReason.UNAVAILABLE:
                return refused(query, error)
            if not told:
                await tell("planner_unavailable", f"planner unavailable: {error.message}; retrying")
                told = True
        await asyncio.sleep(retry_seconds)
    if scheduler != DEFAULT_SCHEDULER:
        answer = await _custom_plan(
            query, answer, policy, scheduler, view, tell, min_fault_tolerance
        )
    return PlanArrived(query=query, answer=answer)


def refused(query: PlanQuery, error: PlanariaError) -> PlanRefused:
    """Return that there is no plan, and why."""
    return PlanRefused(
        query=query, reason=error.reason, message=error.message, metadata=error.metadata
    )


async def _custom_plan(
    query: PlanQuery,
    answer: PlanAnswer,
    policy: SchedulingPolicy,
    scheduler: str,
    view: Callable[[], PolicyView],
    tell: Tell,
    min_fault_tolerance: int,
) -> PlanAnswer:
    """Return the scheduler's plan in place of the planner's, unless it breaks a rule."""
    wanted = min(min_fault_tolerance, query.problem.fault_tolerance, answer.plan.fault_tolerance)
    decision = await policy.choose_plan(
        PlanQuestion(
            scheduler=scheduler,
            view=view(),
            query=query,
            fault_tolerance=wanted,
            proposal=answer.plan,
        )
    )
    if decision.overruled:
        await tell("scheduler_overruled", decision.overruled)
    if decision.plan == answer.plan:
        return answer
    plan = with_node_indices(decision.plan)
    node_ids = [node.node_id for node in query.nodes]
    problem = plan_problem(plan, query, fault_tolerance=wanted, node_ids=node_ids)
    if problem is not None:
        message = f"scheduler {scheduler} made a plan that cannot be carried out: {problem}"
        await tell("scheduler_overruled", message)
        return answer
    return replace(answer, plan=completed_plan(plan, query), copies=(), reason=decision.reason)
