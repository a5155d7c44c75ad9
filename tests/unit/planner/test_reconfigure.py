"""From any plan there is a next one: it is whole, it fits, and copies come only from holders."""

import random
from dataclasses import replace

import pytest

from benchmarks.planner.figures import holdings, running
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_planner.changes.candidates import CandidateKind
from planaria_planner.changes.contingency_plans import contingency_plans
from planaria_planner.changes.reconfigure import reconfigure
from planaria_planner.cost.profile import NodeKind
from planaria_planner.plans.instantiate import instantiate
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Plan, Problem
from unit.planner.profiles import equal_layers, random_profile

LONG = 1e7
"""A horizon so long that getting there costs nothing."""


def nodes_named(*names: str) -> list[Node]:
    return [Node(node_id=name) for name in names]


def shape(plan: Plan) -> list[int]:
    return sorted(len(pipeline.node_ids) for pipeline in plan.pipelines)


def small_job(**changes: int) -> Problem:
    arguments = {"num_microbatches": 40, "fault_tolerance": 1, "min_nodes_per_pipeline": 2}
    return Problem(profile=equal_layers(8), **{**arguments, **changes})


def test_a_lost_node_leaves_healthy_pipelines_unchanged() -> None:
    """With little time to the next change, only the broken pipeline changes."""
    problem = small_job()
    nodes = nodes_named(*"abcdefg")
    plan = instantiate(problem, nodes).plan
    assert shape(plan) == [2, 2, 3]
    broken = next(p for p in plan.pipelines if len(p.node_ids) == 3)
    lost = broken.node_ids[1]
    left = [node for node in nodes if node.node_id != lost]
    held = {node: layers for node, layers in holdings(plan).items() if node != lost}

    answer = reconfigure(problem, left, running(plan), held, horizon_seconds=60)

    assert answer.chosen.kind is CandidateKind.SHRINK
    unchanged = {p.node_ids for p in plan.pipelines if p is not broken}
    assert unchanged < {p.node_ids for p in answer.chosen.plan.pipelines}
    assert {copy.destination for copy in answer.chosen.copies} <= set(broken.node_ids)


def test_a_pipeline_too_small_borrows_from_a_larger_one() -> None:
    """Five nodes in 3 + 2; one of the two is lost: 2 + 2 is possible only by borrowing."""
    problem = small_job()
    nodes = nodes_named(*"abcde")
    plan = instantiate(problem, nodes).plan
    lost = next(p for p in plan.pipelines if len(p.node_ids) == 2).node_ids[0]
    held = {node: layers for node, layers in holdings(plan).items() if node != lost}

    answer = reconfigure(
        problem,
        [node for node in nodes if node.node_id != lost],
        running(plan),
        held,
        horizon_seconds=LONG,
    )

    assert shape(answer.chosen.plan) == [2, 2]
    assert CandidateKind.BORROW in {candidate.kind for candidate in answer.candidates}
    assert answer.chosen.plan.fault_tolerance == 1


def test_below_the_fault_tolerance_the_job_goes_on_and_says_so() -> None:
    problem = small_job()
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    held = {node: layers for node, layers in holdings(plan).items() if node != "a"}

    answer = reconfigure(problem, nodes[1:], running(plan), held, horizon_seconds=LONG)

    assert answer.chosen.plan.fault_tolerance == 0
    assert "tolerates 0 failures, fewer than the 1 asked for" in answer.reason


def test_a_broken_pipeline_that_a_free_node_fills_up_says_so() -> None:
    problem = small_job()
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    held = {node: layers for node, layers in holdings(plan).items() if node != "a"}

    answer = reconfigure(
        problem, [*nodes[1:], *nodes_named("e")], running(plan), held, horizon_seconds=LONG
    )

    assert "broken pipelines continue with 2 nodes, 1 of them free until now" in answer.reason
    assert "B to copy, there in" in answer.reason


def test_below_the_smallest_pipeline_there_is_no_plan() -> None:
    problem = small_job()
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    with pytest.raises(PlanariaError, match=r"not enough nodes: have 1, need 2") as caught:
        reconfigure(problem, nodes[:1], running(plan), holdings(plan), horizon_seconds=1)
    assert caught.value.reason is ErrorReason.NOT_ENOUGH_NODES
    assert caught.value.metadata == {"have": "1", "need": "2"}


def test_nodes_that_are_too_small_for_a_model_that_ran_are_not_enough_nodes() -> None:
    """Whether or not the profile still names the kind of node that is gone."""
    small = NodeKind(name="small", accelerators_per_node=1, accelerator_memory_bytes=1050)
    both = equal_layers(8, memory_bytes=1 << 20)
    hardware = replace(both.hardware, node_kinds=(*both.hardware.node_kinds, small))
    problem = Problem(profile=replace(both, hardware=hardware), num_microbatches=8)
    plan = instantiate(problem, [*nodes_named("a"), Node(node_id="b", kind=1)]).plan
    assert {node_id for p in plan.pipelines for node_id in p.node_ids} == {"a"}

    left = [Node(node_id="b", kind=1)]
    with pytest.raises(PlanariaError, match=r"not enough nodes: have 1, need 2") as caught:
        reconfigure(problem, left, running(plan), {}, horizon_seconds=1)
    assert caught.value.reason is ErrorReason.NOT_ENOUGH_NODES

    only = replace(hardware, node_kinds=(small,))
    forgotten = replace(problem, profile=replace(both, hardware=only))
    with pytest.raises(PlanariaError, match=r"not enough nodes: have 1, need 2"):
        reconfigure(forgotten, nodes_named("b"), running(plan), {}, horizon_seconds=1)
    with pytest.raises(PlanariaError) as caught:  # a job that never ran
        instantiate(forgotten, nodes_named("b"))
    assert caught.value.reason is ErrorReason.MODEL_DOES_NOT_FIT


def test_a_joiner_is_used_when_there_is_time_and_left_idle_when_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planaria_planner.changes.reconfigure.FIXED_SECONDS", 5.0)
    problem = small_job()
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    bigger = [*nodes, Node(node_id="e")]

    soon = reconfigure(problem, bigger, running(plan), holdings(plan), horizon_seconds=6)
    late = reconfigure(problem, bigger, running(plan), holdings(plan), horizon_seconds=LONG)

    assert soon.chosen.kind is CandidateKind.KEEP
    assert soon.chosen.plan.idle_node_ids == ("e",)
    assert soon.chosen.transition_seconds == 0
    assert shape(late.chosen.plan) == [2, 3]
    assert late.chosen.plan.iteration_seconds < soon.chosen.plan.iteration_seconds


def test_a_layer_without_a_holder_has_no_copy_source() -> None:
    """A layer that no node holds has no source: it must come from a checkpoint."""
    problem = small_job(fault_tolerance=0)
    answer = reconfigure(problem, nodes_named("a", "b"), [], {}, horizon_seconds=LONG)
    assert {copy.source for copy in answer.chosen.copies} == {""}
    assert {copy.layer for copy in answer.chosen.copies} == set(range(8))


def test_a_slow_node_is_left_out_when_that_is_faster() -> None:
    """A node measured at a tenth of its speed would slow all of its pipeline."""
    problem = small_job(min_nodes_per_pipeline=1)
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    slow = [*nodes[:3], Node(node_id="d", relative_speed=0.01)]
    answer = reconfigure(problem, slow, running(plan), holdings(plan), horizon_seconds=LONG)
    assert answer.chosen.plan.idle_node_ids == ("d",)


def test_a_plan_does_not_depend_on_the_order_of_the_nodes() -> None:
    rng = random.Random(4)
    profile = random_profile(rng, num_layers=7, accelerators=(2, 1))
    problem = Problem(profile=profile, num_microbatches=9, fault_tolerance=1)
    nodes = [
        Node(node_id=f"n{i}", kind=i % 2, relative_speed=rng.choice([1.0, 0.8])) for i in range(8)
    ]
    first = instantiate(problem, nodes).plan
    for _ in range(5):
        rng.shuffle(nodes)
        assert instantiate(problem, nodes).plan == first


def test_a_node_that_leaves_is_copied_from_while_it_is_still_there() -> None:
    """Without fault tolerance a drained node has the only copy of its layers."""
    problem = small_job(fault_tolerance=0)
    nodes = nodes_named("a", "b")
    plan = instantiate(problem, nodes).plan
    leaving = plan.pipelines[0].node_ids[1]
    staying = [node for node in nodes if node.node_id != leaving]
    answer = reconfigure(
        problem,
        [*staying, Node(node_id="c")],
        running(plan),
        holdings(plan),
        horizon_seconds=LONG,
    )
    assert {copy.source for copy in answer.chosen.copies} == {leaving}
    assert {copy.destination for copy in answer.chosen.copies} == {"c"}


def test_a_refusal_says_how_many_nodes_there_must_be() -> None:
    """Also when memory limits the microbatches of a pipeline, and when there are very many."""
    problem = Problem(
        profile=equal_layers(4, memory_bytes=2400, activation_bytes=150),
        num_microbatches=5000,
        fault_tolerance=2,
        min_nodes_per_pipeline=2,
    )
    with pytest.raises(PlanariaError) as caught:
        instantiate(problem, nodes_named("a", "b", "c", "d", "e"))
    need = int(caught.value.metadata["need"])
    names = [f"n{i:05}" for i in range(need)]
    instantiate(problem, nodes_named(*names))
    with pytest.raises(PlanariaError):
        instantiate(problem, nodes_named(*names[1:]))


def test_contingency_plans_equal_plans_made_on_request() -> None:
    """For every single loss; where the loss leaves too few nodes, so does the plan made ahead."""
    for fault_tolerance, names in [(1, "abcdefg"), (0, "ab")]:
        problem = small_job(fault_tolerance=fault_tolerance)
        nodes = nodes_named(*names)
        plan = instantiate(problem, nodes).plan
        held = holdings(plan)
        ahead = dict(contingency_plans(problem, nodes, running(plan), held, horizon_seconds=600))
        assert sorted(ahead) == sorted(held)
        for lost, outcome in ahead.items():
            left = [node for node in nodes if node.node_id != lost]
            without = {name: layers for name, layers in held.items() if name != lost}
            if isinstance(outcome, PlanariaError):
                with pytest.raises(PlanariaError) as caught:
                    reconfigure(problem, left, running(plan), without, horizon_seconds=600)
                assert caught.value.reason is outcome.reason
            else:
                assert outcome == reconfigure(
                    problem, left, running(plan), without, horizon_seconds=600
                )
