"""Asking for a plan: the planner first, then the user's scheduler where there is one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.ports import Planner, PlanQuestion, SchedulingPolicy
from planaria_coordinator.application.scheduling.policy import DEFAULT_SCHEDULER
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.domain.job.job import Job
from planaria_coordinator.domain.job.signals import PlanArrived, PlanRefused
from planaria_coordinator.domain.placement.plan import plan_problem
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
    view: Callable[[], tuple[Job, tuple[Node, ...], tuple[Job, ...]]],
    tell: Tell,
    retry_seconds: float,
    known: PlanAnswer | None = None,
) -> PlanArrived | PlanRefused:
    """Return a plan, or why there is none; waits for a planner for as long as it takes.

    Args:
        query: the question.
        planner: the planner.
        policy: decides between the planner's proposal and a scheduler's plan.
        scheduler: the job's scheduler.
        view: the job, all nodes, and all jobs that hold nodes.
        tell: makes an event of the job.
        retry_seconds: how long to wait before a planner that did not answer is asked again.
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
        answer = await _custom_plan(query, answer, policy, scheduler, view, tell)
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
    view: Callable[[], tuple[Job, tuple[Node, ...], tuple[Job, ...]]],
    tell: Tell,
) -> PlanAnswer:
    job, nodes, jobs = view()
    node_ids = tuple(node.node_id for node in query.nodes)
    decision = await policy.choose_plan(
        PlanQuestion(
            job=job,
            scheduler=scheduler,
            profile=query.problem.profile,
            current=query.current,
            available_node_ids=node_ids,
            proposal=answer.plan,
            nodes=nodes,
            jobs=jobs,
        )
    )
    problem = plan_problem(
        decision.plan,
        num_layers=len(query.problem.profile.layers),
        num_microbatches=query.problem.num_microbatches,
        node_ids=frozenset(node_ids),
    )
    if problem is not None:
        await tell("scheduler_overruled", f"scheduler {scheduler}: {problem}")
        return answer
    if decision.overruled:
        await tell("scheduler_overruled", decision.overruled)
    if decision.plan == answer.plan:
        return answer
    return replace(answer, plan=decision.plan, reason=decision.reason)
