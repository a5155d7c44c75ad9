"""A node that was to join is lost while the plan in which it has a place is made."""

from dataclasses import replace
from typing import Any

from planaria_coordinator.domain.engines.outcome import DirectiveResult, FenceReport, HeldLayer
from planaria_coordinator.domain.job.actions import AskPlanner
from planaria_coordinator.domain.job.decide import decide
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import Limits
from planaria_coordinator.domain.job.signals import (
    EnginesStuck,
    NodeLost,
    NodesGranted,
    PlanArrived,
    ResultArrived,
    Signal,
)
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery
from unit.coordinator.protocol.cluster import (
    UNEVEN,
    facts_of,
    first_run,
    make_plan,
    prepared,
)
from unit.coordinator.protocol.engine_state import NOON
from unit.coordinator.protocol.model import NOW

JOINING = replace(UNEVEN, joiners=("b1",))
LAYERS_OF = {"a0": (0,), "a1": (1,), "b0": (0, 1)}


class Talk:
    """Signals to the coordinator's own decide(), one after another."""

    def __init__(self) -> None:
        self.run = first_run(4, JOINING)
        self.query: PlanQuery | None = None

    def tell(self, signal: Signal) -> None:
        decision = decide(NOW, self.run, signal, Limits())
        self.run = decision.run
        for action in decision.actions:
            if isinstance(action, AskPlanner):
                self.query = action.query

    def answer(self, node_id: str, kind: str, outcome: Any) -> None:
        engine_id = JOINING.engine_ids[node_id]
        (asked,) = (
            pending
            for pending in self.run.pending.values()
            if (pending.engine_id, pending.kind) == (engine_id, kind)
        )
        result = DirectiveResult(directive_id=asked.directive_id, job_id="job", outcome=outcome)
        self.tell(ResultArrived(result=result))


def report(layers: tuple[int, ...]) -> FenceReport:
    return FenceReport(
        committed_steps=0,
        last_commit=None,
        layers=tuple(HeldLayer(layer=layer, version=0) for layer in layers),
        finished_microbatches=(),
        step_compute_seconds=0.0,
        fence_time=NOON,
        park_time=NOON,
    )


def test_a_joiner_that_the_planner_was_asked_for_and_that_is_lost_is_planned_without() -> None:
    """b1 becomes ready while the others, who were parked, are collected. Guard: it takes part in
    nothing yet, and a plan that comes with it would be one that nobody can carry out."""
    talk = Talk()
    talk.tell(NodesGranted(nodes=(facts_of("b1"),), nodes_per_replica=0, reason="room"))
    talk.tell(EnginesStuck(seconds=10.0))
    talk.answer("b1", "prepare", prepared(JOINING.engine_ids["b1"]))
    for node_id, layers in LAYERS_OF.items():
        talk.answer(node_id, "quiesce", report(layers))
    query = talk.query
    assert query is not None
    node_ids = sorted(node.node_id for node in query.nodes)
    assert node_ids == ["a0", "a1", "b0", "b1"]
    talk.tell(NodeLost(node_id="b1", fault_time=NOON, reason="dead", gone=True))
    plan = make_plan(JOINING.pipelines_of, node_ids)
    talk.tell(PlanArrived(query=query, answer=PlanAnswer(plan=plan, reason="", min_nodes=1)))
    assert talk.run.state is not JobState.FAILED, talk.run.error
    assert talk.run.setback is None, talk.run.setback
    for node_id, layers in LAYERS_OF.items():
        talk.answer(node_id, "quiesce", report(layers))
    assert talk.query is not None
    assert sorted(node.node_id for node in talk.query.nodes) == sorted(LAYERS_OF)
