"""A planner in memory that keeps the promises of its port, and can fail."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.placement.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery


class FakePlanner:
    """Cuts pipelines evenly: as many as there can be, the first ones longer."""

    def __init__(self) -> None:
        self.queries: list[PlanQuery] = []
        self.error: Exception | None = None
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.uses_joiners = True
        self.avoids: frozenset[str] = frozenset()
        """Nodes that are in no plan."""
        self.min_size = 1
        """Pipelines have at least so many nodes, though `min_nodes` does not say so."""
        self.appends_joiners = False
        """Joiners make pipelines of their own, and the others stay as they are."""
        self.predicts = True
        """Plans say how long a step takes; those of a custom scheduler need not."""
        self.plans_ahead = False
        self.questions_ahead: list[PlanQuery] = []

    async def plan(self, query: PlanQuery) -> PlanAnswer:
        self.queries.append(query)
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        answer = self._plan(query)
        return answer if self.predicts else replace(answer, plan=_unpredicted(answer.plan))

    def _plan(self, query: PlanQuery) -> PlanAnswer:
        size = max(self.min_size, query.problem.min_nodes_per_pipeline)
        node_ids = sorted({node.node_id for node in query.nodes} - self.avoids)
        if query.current is not None and not self.uses_joiners:
            node_ids = [n for n in node_ids if n in query.current.node_ids]
        if len(node_ids) < size:
            need = {"have": str(len(node_ids)), "need": str(size)}
            raise PlanariaError(ErrorReason.NOT_ENOUGH_NODES, "not enough nodes", need)
        if self.appends_joiners and query.current is not None:
            return self._append(query, query.current, size)
        num_pipelines = min(len(node_ids) // size, query.problem.num_microbatches)
        if query.current is None and num_pipelines <= query.problem.fault_tolerance:
            raise PlanariaError(
                ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE,
                f"only {num_pipelines - 1} losses can be tolerated",
                {"possible": str(num_pipelines - 1)},
            )
        return PlanAnswer(
            plan=make_plan(
                node_ids,
                num_pipelines,
                len(query.problem.profile.layers),
                query.problem.num_microbatches,
                num_accelerators=accelerators_per_node(query),
            ),
            reason="as many pipelines as there can be",
            min_nodes=size,
        )

    def _append(self, query: PlanQuery, current: Plan, size: int) -> PlanAnswer:
        new = sorted({node.node_id for node in query.nodes} - set(current.node_ids))
        groups = [p.node_ids for p in current.pipelines]
        groups += [tuple(new[k : k + size]) for k in range(0, len(new) - size + 1, size)]
        dealt = [node_id for rank in zip(*groups, strict=True) for node_id in rank]
        num_layers = len(query.problem.profile.layers)
        plan = make_plan(dealt, len(groups), num_layers, query.problem.num_microbatches)
        return PlanAnswer(plan=plan, reason="joiners by themselves", min_nodes=size)

    async def contingency_plans(self, query: PlanQuery) -> AsyncIterator[tuple[str, PlanAnswer]]:
        self.questions_ahead.append(query)
        if not self.plans_ahead or query.current is None:
            return
        for node_id in query.current.node_ids:
            survivors = tuple(node for node in query.nodes if node.node_id != node_id)
            with suppress(PlanariaError):
                yield node_id, self._plan(replace(query, nodes=survivors))

    async def min_nodes(self, query: PlanQuery) -> int:
        if self.error is not None:
            raise self.error
        return max(1, query.problem.min_nodes_per_pipeline)

    async def ping(self) -> None:
        if self.error is not None:
            raise self.error


def _unpredicted(plan: Plan) -> Plan:
    pipelines = tuple(replace(pipeline, iteration_seconds=0.0) for pipeline in plan.pipelines)
    return replace(plan, pipelines=pipelines, iteration_seconds=0.0)


def accelerators_per_node(query: PlanQuery) -> int:
    return min(kind.accelerators_per_node for kind in query.problem.profile.hardware.node_kinds)


def make_plan(
    node_ids: Sequence[str],
    num_pipelines: int,
    num_layers: int,
    num_microbatches: int,
    *,
    num_accelerators: int = 1,
) -> Plan:
    """Deal nodes and microbatches round, and cut the layers evenly over all accelerators."""
    pipelines = []
    for index in range(num_pipelines):
        mine = node_ids[index::num_pipelines]
        stage_engines = [(k, n) for k in range(len(mine)) for n in range(num_accelerators)][
            :num_layers
        ]
        cuts = [num_layers * k // len(stage_engines) for k in range(len(stage_engines) + 1)]
        stages = tuple(
            Stage(
                first_layer=first,
                num_layers=end - first,
                node_index=node_index,
                node_id=mine[node_index],
                accelerators=(accelerator,),
            )
            for (node_index, accelerator), (first, end) in zip(
                stage_engines, itertools.pairwise(cuts), strict=True
            )
        )
        microbatches = tuple(range(index, num_microbatches, num_pipelines))
        pipelines.append(Pipeline(stages=stages, microbatches=microbatches, iteration_seconds=1.0))
    return Plan(
        pipelines=tuple(pipelines), iteration_seconds=1.0, fault_tolerance=num_pipelines - 1
    )
