"""The planner's messages, in and out: the only module that touches protobuf."""

from collections.abc import Iterable, Sequence

from planaria.api.common.v1 import plan_pb2
from planaria.api.planner.v1 import planner_service_pb2 as pb
from planaria_common.errors import PlanariaError, invalid
from planaria_common.messages import from_message
from planaria_planner.changes.candidates import RunningPipeline
from planaria_planner.changes.contingency_plans import Outcome
from planaria_planner.changes.inventory import Holdings
from planaria_planner.changes.reconfigure import Reconfiguration
from planaria_planner.cost.cost_model import Stage
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Plan, Problem


def problem_from(message: pb.Problem) -> Problem:
    return Problem(
        profile=from_message(message.profile, ModelProfile),
        num_microbatches=message.num_microbatches,
        fault_tolerance=message.fault_tolerance,
        min_nodes_per_pipeline=message.min_nodes_per_pipeline,
        max_stage_accelerators=message.max_stage_accelerators or None,
    )


def nodes_from(profile: ModelProfile, messages: Iterable[pb.PlanNode]) -> tuple[Node, ...]:
    return tuple(
        Node(
            node_id=message.node_id,
            kind=profile.kind_index(message.kind),
            relative_speed=message.relative_speed or 1.0,
        )
        for message in messages
    )


def running_from(message: plan_pb2.Plan) -> tuple[RunningPipeline, ...]:
    return tuple(
        _running_pipeline(index, pipeline) for index, pipeline in enumerate(message.pipelines)
    )


def _running_pipeline(index: int, message: plan_pb2.Pipeline) -> RunningPipeline:
    node_ids: list[str] = []
    stages = []
    for number, stage in enumerate(message.stages):
        if not stage.accelerators:
            field = f"pipelines[{index}].stages[{number}].accelerators"
            raise invalid(field, "empty; a stage runs on at least one")
        if not node_ids or stage.node_id != node_ids[-1]:
            node_ids.append(stage.node_id)
        stages.append(
            Stage(
                first_layer=stage.first_layer,
                num_layers=stage.num_layers,
                node=len(node_ids) - 1,
                accelerators=len(stage.accelerators),
            )
        )
    return RunningPipeline(node_ids=tuple(node_ids), stages=tuple(stages))


def holdings_from(messages: Iterable[pb.Holding]) -> Holdings:
    holdings: dict[str, frozenset[int]] = {}
    for message in messages:
        holdings[message.node_id] = holdings.get(message.node_id, frozenset()).union(message.layers)
    return holdings


def plan_message(plan: Plan) -> plan_pb2.Plan:
    return plan_pb2.Plan(
        pipelines=[
            plan_pb2.Pipeline(
                stages=_stage_messages(pipeline.stages, pipeline.node_ids),
                microbatches=pipeline.microbatches,
                iteration_seconds=pipeline.iteration_seconds,
                max_microbatches=pipeline.cost.max_microbatches or 0,
            )
            for pipeline in plan.pipelines
        ],
        idle_node_ids=plan.idle_node_ids,
        iteration_seconds=plan.iteration_seconds,
        fault_tolerance=plan.fault_tolerance,
    )


def _stage_messages(stages: Sequence[Stage], node_ids: Sequence[str]) -> list[plan_pb2.Stage]:
    """Number the accelerators of each node from 0 in the order of its stages."""
    messages = []
    node, used = -1, 0
    for stage in stages:
        used = used if stage.node == node else 0
        node = stage.node
        messages.append(
            plan_pb2.Stage(
                first_layer=stage.first_layer,
                num_layers=stage.num_layers,
                node_index=node,
                node_id=node_ids[node],
                accelerators=range(used, used + stage.accelerators),
            )
        )
        used += stage.accelerators
    return messages


def reconfigure_message(answer: Reconfiguration) -> pb.ReconfigureResponse:
    return pb.ReconfigureResponse(
        plan=plan_message(answer.chosen.plan),
        copies=[
            pb.LayerCopy(
                layer=copy.layer,
                source_node_id=copy.source,
                destination_node_id=copy.destination,
            )
            for copy in answer.chosen.copies
        ],
        reason=answer.reason,
        min_nodes=answer.min_nodes,
    )


def contingency_message(lost_node_id: str, outcome: Outcome) -> pb.PlanContingenciesResponse:
    if isinstance(outcome, PlanariaError):
        return pb.PlanContingenciesResponse(
            lost_node_id=lost_node_id,
            error_reason=outcome.reason.value,
            error_message=outcome.message,
        )
    return pb.PlanContingenciesResponse(
        lost_node_id=lost_node_id, next=reconfigure_message(outcome)
    )
