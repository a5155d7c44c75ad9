"""Lets a user's scheduler decide, within limits: late, gone or wrong, the built-in policy does."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from planaria.api.common.v1 import plan_pb2, profile_pb2
from planaria.api.coordinator.v1 import resources_pb2
from planaria.api.coordinator.v1 import scheduler_service_pb2 as pb
from planaria_common.messages import from_message, to_message
from planaria_common.words import counted
from planaria_coordinator.application.ports import (
    NodesDecision,
    NodesQuestion,
    PlanDecision,
    PlanQuestion,
)
from planaria_coordinator.application.scheduling.policy import DEFAULT_SCHEDULER, BuiltInPolicy
from planaria_coordinator.domain.placement.plan import Plan, plan_problem
from planaria_coordinator.entrypoints.grpc.scheduler_sessions import (
    NoAnswerError,
    SchedulerSessions,
)


class CustomPolicy:
    """The application's SchedulingPolicy over the schedulers that are connected.

    Args:
        sessions: the connected schedulers.
        decision_deadline_seconds: how long an answer may take.
        new_id: makes unique ids.
    """

    def __init__(
        self,
        sessions: SchedulerSessions,
        *,
        decision_deadline_seconds: float,
        new_id: Callable[[str], str],
    ) -> None:
        self._sessions = sessions
        self._deadline_seconds = decision_deadline_seconds
        self._new_id = new_id
        self._built_in = BuiltInPolicy()

    def knows(self, scheduler: str) -> bool:
        return self._built_in.knows(scheduler) or scheduler in self._sessions.names

    async def choose_nodes(self, question: NodesQuestion) -> NodesDecision:
        built_in = await self._built_in.choose_nodes(question)
        if question.scheduler == DEFAULT_SCHEDULER:
            return built_in
        request = self._request(question)
        request.nodes_question.candidate_node_ids.extend(n.id for n in question.candidates)
        request.nodes_question.min_nodes = question.min_nodes
        request.nodes_question.max_nodes = question.max_nodes
        try:
            decision = await self._ask(question.scheduler, request, "nodes_answer")
            node_ids = tuple(decision.nodes_answer.node_ids)
            _check_nodes(node_ids, question)
        except NoAnswerError as problem:
            return replace(built_in, overruled=f"scheduler {question.scheduler} {problem}")
        return NodesDecision(node_ids=node_ids, reason=f"chosen by scheduler {question.scheduler}")

    async def choose_plan(self, question: PlanQuestion) -> PlanDecision:
        built_in = await self._built_in.choose_plan(question)
        if question.scheduler == DEFAULT_SCHEDULER:
            return built_in
        try:
            decision = await self._ask(
                question.scheduler, self._plan_request(question), "plan_answer"
            )
            if not decision.plan_answer.HasField("plan"):
                reason = f"the planner's proposal, accepted by scheduler {question.scheduler}"
                return PlanDecision(plan=question.proposal, reason=reason)
            plan = _checked_plan(from_message(decision.plan_answer.plan, Plan), question)
        except NoAnswerError as problem:
            return replace(built_in, overruled=f"scheduler {question.scheduler} {problem}")
        return PlanDecision(plan=plan, reason=f"made by scheduler {question.scheduler}")

    async def _ask(self, scheduler: str, request: pb.DecisionRequest, kind: str) -> pb.Decision:
        decision = await self._sessions.ask(
            scheduler, request, deadline_seconds=self._deadline_seconds
        )
        if decision.WhichOneof("answer") != kind:
            raise NoAnswerError(f"answered another question than the one it was asked: no {kind}")
        return decision

    def _plan_request(self, question: PlanQuestion) -> pb.DecisionRequest:
        request = self._request(question)
        profile = to_message(question.profile, profile_pb2.ModelProfile)
        request.plan_question.profile.CopyFrom(profile)
        if question.current is not None:
            request.plan_question.current.CopyFrom(to_message(question.current, plan_pb2.Plan))
        request.plan_question.available_node_ids.extend(question.available_node_ids)
        request.plan_question.proposal.CopyFrom(to_message(question.proposal, plan_pb2.Plan))
        return request

    def _request(self, question: NodesQuestion | PlanQuestion) -> pb.DecisionRequest:
        deadline = Duration()
        deadline.FromTimedelta(timedelta(seconds=self._deadline_seconds))
        return pb.DecisionRequest(
            decision_id=self._new_id("decision"),
            job=to_message(question.job, resources_pb2.Job),
            nodes=[to_message(node, resources_pb2.Node) for node in question.nodes],
            jobs=[to_message(job, resources_pb2.Job) for job in question.jobs],
            deadline=deadline,
        )


def _check_nodes(node_ids: tuple[str, ...], question: NodesQuestion) -> None:
    candidates = {node.id for node in question.candidates}
    strangers = sorted(set(node_ids) - candidates)
    if strangers:
        raise NoAnswerError(f"chose {', '.join(strangers)}, not among the candidates")
    if len(set(node_ids)) < len(node_ids):
        raise NoAnswerError("chose a node twice")
    if node_ids and not question.min_nodes <= len(node_ids) <= question.max_nodes:
        raise NoAnswerError(
            f"chose {counted(len(node_ids), 'node')}; the job takes {question.min_nodes} "
            f"to {question.max_nodes}, or none to wait"
        )


def _checked_plan(plan: Plan, question: PlanQuestion) -> Plan:
    """Return the plan with its idle nodes and fault tolerance as they really are."""
    num_microbatches = sum(len(pipeline.microbatches) for pipeline in question.proposal.pipelines)
    problem = plan_problem(
        plan,
        num_layers=len(question.profile.layers),
        num_microbatches=num_microbatches,
        node_ids=frozenset(question.available_node_ids),
    ) or _accelerator_problem(plan, question)
    if problem is not None:
        raise NoAnswerError(f"made a plan that cannot be carried out: {problem}")
    used = set(plan.node_ids)
    return replace(
        plan,
        idle_node_ids=tuple(n for n in question.available_node_ids if n not in used),
        fault_tolerance=_tolerated_losses(plan),
    )


def _accelerator_problem(plan: Plan, question: PlanQuestion) -> str | None:
    counts = {node.id: node.num_accelerators for node in question.nodes}
    for stage in plan.stages:
        if any(index >= counts[stage.node_id] for index in stage.accelerators):
            return f"{stage.node_id} has only {counts[stage.node_id]} accelerators"
    return None


def _tolerated_losses(plan: Plan) -> int:
    """Return how many nodes may be lost while every layer still has a replica."""
    hosts: dict[int, set[str]] = {}
    for stage in plan.stages:
        for layer in stage.layers:
            hosts.setdefault(layer, set()).add(stage.node_id)
    return min(len(nodes) for nodes in hosts.values()) - 1
