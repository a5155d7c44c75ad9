"""Lets a user's scheduler decide, within limits: late, gone or wrong, the built-in policy does."""

from collections.abc import Callable
from dataclasses import replace

from planaria.api.common.v1 import plan_pb2, profile_pb2
from planaria.api.coordinator.v1 import resources_pb2
from planaria.api.coordinator.v1 import scheduler_service_pb2 as pb
from planaria_common.messages import duration, from_message, to_message
from planaria_common.words import counted
from planaria_coordinator.application.ports import (
    NodesDecision,
    NodesQuestion,
    PlanDecision,
    PlanQuestion,
)
from planaria_coordinator.application.scheduling.policy import DEFAULT_SCHEDULER, BuiltInPolicy
from planaria_coordinator.domain.placement.plan import Plan
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
        except NoAnswerError as problem:
            return replace(built_in, overruled=f"scheduler {question.scheduler} {problem}")
        if not decision.plan_answer.HasField("plan"):
            reason = f"the planner's proposal, accepted by scheduler {question.scheduler}"
            return PlanDecision(plan=question.proposal, reason=reason)
        return PlanDecision(
            plan=from_message(decision.plan_answer.plan, Plan),
            reason=f"made by scheduler {question.scheduler}",
        )

    async def _ask(self, scheduler: str, request: pb.DecisionRequest, kind: str) -> pb.Decision:
        decision = await self._sessions.ask(
            scheduler, request, deadline_seconds=self._deadline_seconds
        )
        if decision.WhichOneof("answer") != kind:
            raise NoAnswerError(f"answered another question than the one it was asked: no {kind}")
        return decision

    def _plan_request(self, question: PlanQuestion) -> pb.DecisionRequest:
        request = self._request(question)
        query, problem = question.query, question.query.problem
        request.plan_question.CopyFrom(
            pb.PlanQuestion(
                profile=to_message(problem.profile, profile_pb2.ModelProfile),
                current=None if query.current is None else to_message(query.current, plan_pb2.Plan),
                available_node_ids=[node.node_id for node in query.nodes],
                proposal=to_message(question.proposal, plan_pb2.Plan),
                num_microbatches=problem.num_microbatches,
                fault_tolerance=question.fault_tolerance,
                min_nodes_per_pipeline=problem.min_nodes_per_pipeline,
            )
        )
        return request

    def _request(self, question: NodesQuestion | PlanQuestion) -> pb.DecisionRequest:
        view = question.view
        return pb.DecisionRequest(
            decision_id=self._new_id("decision"),
            job=to_message(view.job, resources_pb2.Job),
            nodes=[to_message(node, resources_pb2.Node) for node in view.nodes],
            jobs=[to_message(job, resources_pb2.Job) for job in view.jobs],
            deadline=duration(self._deadline_seconds),
            relative_speeds=view.relative_speeds,
        )


def _check_nodes(node_ids: tuple[str, ...], question: NodesQuestion) -> None:
    candidates = {node.id for node in question.candidates}
    strangers = sorted(set(node_ids) - candidates)
    if strangers:
        offered = ", ".join(sorted(candidates))
        raise NoAnswerError(f"chose {strangers[0][:64]}: node_ids must be among {offered}")
    if len(set(node_ids)) < len(node_ids):
        raise NoAnswerError("chose a node twice: node_ids must have each once")
    if node_ids and not question.min_nodes <= len(node_ids) <= question.max_nodes:
        raise NoAnswerError(
            f"chose {counted(len(node_ids), 'node')}: node_ids must have {question.min_nodes} "
            f"to {question.max_nodes}, or none to wait"
        )
