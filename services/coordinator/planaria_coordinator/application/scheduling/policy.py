"""The built-in scheduling policy."""

from planaria_common.words import counted, counted_of
from planaria_coordinator.application.ports import (
    NodesDecision,
    NodesQuestion,
    PlanDecision,
    PlanQuestion,
)

DEFAULT_SCHEDULER = "default"


class BuiltInPolicy:
    """As many nodes as the job may have, and the planner's plan."""

    def knows(self, scheduler: str) -> bool:
        return scheduler == DEFAULT_SCHEDULER

    async def choose_nodes(self, question: NodesQuestion) -> NodesDecision:
        node_ids = tuple(node.id for node in question.candidates[: question.max_nodes])
        if len(node_ids) < question.min_nodes:
            free = counted_of(len(node_ids), question.min_nodes, "node")
            return NodesDecision(node_ids=(), reason=f"{free} free")
        return NodesDecision(
            node_ids=node_ids,
            reason=f"{len(node_ids)} of {counted(len(question.candidates), 'free node')}",
        )

    async def choose_plan(self, question: PlanQuestion) -> PlanDecision:
        return PlanDecision(plan=question.proposal, reason="the planner's proposal")
