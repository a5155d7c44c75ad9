"""From any plan there is a next one: it is whole, it fits, and copies come only from holders."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_planner.ahead import plan_ahead
from planaria_planner.candidates import CandidateKind, RunningPipeline
from planaria_planner.instantiate import instantiate
from planaria_planner.nodes import Node
from planaria_planner.plans import select
from planaria_planner.problem import Plan, Problem
from planaria_planner.reconfigure import Reconfiguration, TransitionCosts, reconfigure
from planaria_planner.templates import generate_templates
from unit.planner.profiles import equal_layers, random_profile

LONG = 1e7
"""A horizon so long that getting there costs nothing."""


def nodes_named(*names: str) -> list[Node]:
    return [Node(node_id=name) for name in names]


def running(plan: Plan) -> list[RunningPipeline]:
    return [RunningPipeline(node_ids=p.node_ids, stages=p.stages) for p in plan.pipelines]


def holdings(plan: Plan) -> dict[str, frozenset[int]]:
    return {
        node_id: frozenset(layers)
        for pipeline in plan.pipelines
        for node_id, layers in zip(pipeline.node_ids, pipeline.layers_by_node(), strict=True)
    }


def shape(plan: Plan) -> list[int]:
    return sorted(len(pipeline.node_ids) for pipeline in plan.pipelines)


@dataclass
class Cluster:
    """A job on nodes that come and go, and what a planner's answer must be at every moment."""

    problem: Problem
    nodes: dict[str, Node]
    rng: random.Random
    plan: Plan
    held: dict[str, frozenset[int]]
    serial: int = 0
    seen: list[CandidateKind] = field(default_factory=list)

    def lose(self, count: int) -> None:
        for name in self.rng.sample(sorted(self.nodes), min(count, len(self.nodes) - 1)):
            del self.nodes[name]
            self.held.pop(name, None)

    def join(self, count: int) -> None:
        for _ in range(count):
            self.serial += 1
            name = f"joined-{self.rng.randrange(1000)}-{self.serial}"
            self.nodes[name] = Node(
                node_id=name,
                kind=self.rng.randrange(len(self.problem.profile.hardware.node_kinds)),
                relative_speed=self.rng.choice([1.0, 1.0, 0.7]),
            )

    def reconfigure(self, horizon_seconds: float) -> None:
        shuffled = list(self.nodes.values())
        self.rng.shuffle(shuffled)
        pipelines = running(self.plan)
        self.rng.shuffle(pipelines)
        try:
            answer = reconfigure(
                self.problem, shuffled, pipelines, self.held, horizon_seconds=horizon_seconds
            )
        except PlanariaError as error:
            self.check_impossible(error)
            self.plan = Plan(pipelines=(), idle_node_ids=(), iteration_seconds=0.0)
            return
        again = reconfigure(
            self.problem,
            list(self.nodes.values()),
            running(self.plan),
            self.held,
            horizon_seconds=horizon_seconds,
        )
        assert answer == again, "the answer depends on the order of its inputs"
        check_answer(self.problem, self.nodes, self.held, answer, horizon_seconds)
        self.seen.append(answer.chosen.kind)
        self.plan = answer.chosen.plan
        self.held = holdings(self.plan)

    def check_impossible(self, error: PlanariaError) -> None:
        assert most_pipelines_by_trial(self.problem, list(self.nodes.values())) == 0
        if error.reason is ErrorReason.NOT_ENOUGH_NODES:
            assert int(error.metadata["have"]) == len(self.nodes) < int(error.metadata["need"])
        else:  # of several kinds only one is left that can never hold the model
            assert error.reason is ErrorReason.MODEL_DOES_NOT_FIT
            assert len(self.problem.profile.hardware.node_kinds) > 1


def check_answer(
    problem: Problem,
    nodes: dict[str, Node],
    held: dict[str, frozenset[int]],
    answer: Reconfiguration,
    horizon_seconds: float,
) -> None:
    plan = answer.chosen.plan
    used = [node_id for pipeline in plan.pipelines for node_id in pipeline.node_ids]
    assert sorted([*used, *plan.idle_node_ids]) == sorted(nodes), "a node is lost or used twice"
    for pipeline in plan.pipelines:
        layers = [layer for stage in pipeline.stages for layer in stage.layers]
        assert layers == list(range(problem.profile.num_layers)), "a layer is not placed once"
        assert len(pipeline.node_ids) >= answer.min_nodes
        assert 1 <= len(pipeline.microbatches) <= (pipeline.cost.max_microbatches or math.inf)
    microbatches = [m for pipeline in plan.pipelines for m in pipeline.microbatches]
    assert microbatches == list(range(problem.num_microbatches))

    possible = most_pipelines_by_trial(problem, list(nodes.values()))
    assert len(plan.pipelines) >= min(possible, problem.fault_tolerance + 1)
    assert answer.fault_tolerance_met == (plan.fault_tolerance >= problem.fault_tolerance)

    needed = {
        (layer, node_id)
        for pipeline in plan.pipelines
        for node_id, layers in zip(pipeline.node_ids, pipeline.layers_by_node(), strict=True)
        for layer in layers
        if layer not in held.get(node_id, frozenset())
    }
    assert {(copy.layer, copy.destination) for copy in answer.chosen.copies} == needed
    assert len(answer.chosen.copies) == len(needed)
    for copy in answer.chosen.copies:
        holders = {node_id for node_id, layers in held.items() if copy.layer in layers}
        assert copy.source in holders if holders else copy.source == ""
    best = max(candidate.steps_within_horizon for candidate in answer.candidates)
    assert answer.chosen.steps_within_horizon == best


def most_pipelines_by_trial(problem: Problem, nodes: Sequence[Node]) -> int:
    kinds = range(len(problem.profile.hardware.node_kinds))
    try:
        templates = generate_templates(
            problem.profile,
            [sum(node.kind == kind for node in nodes) for kind in kinds],
            min_nodes=problem.min_nodes_per_pipeline,
        )
    except PlanariaError:
        return 0
    return max(
        (
            count
            for count in range(1, problem.num_microbatches + 1)
            if select(
                templates.templates,
                nodes,
                min_pipelines=count,
                num_microbatches=problem.num_microbatches,
            )
        ),
        default=0,
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    changes=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 1.0, 60.0, LONG])),
        min_size=1,
        max_size=8,
    ),
)
def test_every_reachable_state_has_a_next_plan(
    seed: int, changes: list[tuple[int, int, float]]
) -> None:
    """Through any losses and joins: all layers, all microbatches, f + 1 replicas if possible."""
    rng = random.Random(seed)
    fault_tolerance = rng.randint(0, 2)
    problem = Problem(
        profile=random_profile(
            rng,
            num_layers=rng.randint(2, 8),
            accelerators=rng.choice([(1,), (1,), (2,), (1, 2)]),
            tight=rng.random() < 0.5,
        ),
        num_microbatches=rng.randint(fault_tolerance + 1, 12),
        fault_tolerance=fault_tolerance,
        min_nodes_per_pipeline=rng.choice([0, 1, 2]),
    )
    names = [f"node-{i}" for i in range(rng.randint(2, 14))]
    num_kinds = len(problem.profile.hardware.node_kinds)
    nodes = {name: Node(node_id=name, kind=rng.randrange(num_kinds)) for name in names}
    try:
        plan = instantiate(problem, list(nodes.values())).plan
    except PlanariaError:
        return
    cluster = Cluster(problem=problem, nodes=nodes, rng=rng, plan=plan, held=holdings(plan))
    for lost, joined, horizon_seconds in changes:
        cluster.lose(lost)
        cluster.join(joined)
        cluster.reconfigure(horizon_seconds)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_changes_in_a_row() -> None:
    """The same for one long life of one job after another."""
    jobs = 0
    while jobs < 100:
        rng = random.Random(jobs)
        problem = Problem(
            profile=random_profile(rng, num_layers=rng.randint(4, 12), tight=jobs % 2 == 0),
            num_microbatches=rng.randint(3, 24),
            fault_tolerance=rng.randint(0, 2),
            min_nodes_per_pipeline=rng.choice([0, 2]),
        )
        nodes = {f"node-{i}": Node(node_id=f"node-{i}") for i in range(24)}
        jobs += 1
        try:
            plan = instantiate(problem, list(nodes.values())).plan
        except PlanariaError:
            continue
        cluster = Cluster(problem=problem, nodes=nodes, rng=rng, plan=plan, held=holdings(plan))
        for _ in range(100):
            cluster.lose(rng.choice([0, 1, 1, 2, 6]))
            cluster.join(rng.choice([0, 1, 1, 2, 5]))
            cluster.reconfigure(rng.choice([0.0, 1.0, 60.0, LONG]))


def small_job(**changes: int) -> Problem:
    arguments = {"num_microbatches": 40, "fault_tolerance": 1, "min_nodes_per_pipeline": 2}
    return Problem(profile=equal_layers(8), **{**arguments, **changes})


def test_a_lost_node_leaves_the_whole_pipelines_alone() -> None:
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
    assert answer.fault_tolerance_met


def test_below_the_fault_tolerance_the_job_goes_on_and_says_so() -> None:
    problem = small_job()
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    held = {node: layers for node, layers in holdings(plan).items() if node != "a"}

    answer = reconfigure(problem, nodes[1:], running(plan), held, horizon_seconds=LONG)

    assert not answer.fault_tolerance_met
    assert answer.chosen.plan.fault_tolerance == 0
    assert "tolerates 0 failures, fewer than the 1 asked for" in answer.reason


def test_below_the_smallest_pipeline_there_is_no_plan() -> None:
    problem = small_job()
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    with pytest.raises(PlanariaError, match=r"not enough nodes: have 1, need 2") as caught:
        reconfigure(problem, nodes[:1], running(plan), holdings(plan), horizon_seconds=1)
    assert caught.value.reason is ErrorReason.NOT_ENOUGH_NODES
    assert caught.value.metadata == {"have": "1", "need": "2"}


def test_a_joiner_is_used_when_there_is_time_and_left_idle_when_not() -> None:
    problem = small_job()
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    bigger = [*nodes, Node(node_id="e")]
    costs = TransitionCosts(fixed_seconds=5.0)

    soon = reconfigure(
        problem, bigger, running(plan), holdings(plan), horizon_seconds=6, costs=costs
    )
    late = reconfigure(
        problem, bigger, running(plan), holdings(plan), horizon_seconds=LONG, costs=costs
    )

    assert soon.chosen.kind is CandidateKind.KEEP
    assert soon.chosen.plan.idle_node_ids == ("e",)
    assert soon.chosen.transition_seconds == 0
    assert shape(late.chosen.plan) == [2, 3]
    assert late.chosen.plan.iteration_seconds < soon.chosen.plan.iteration_seconds


def test_far_from_the_next_change_the_plan_is_as_fast_as_from_scratch() -> None:
    """Never worse than 1.05 of the optimum for the nodes there are, over random changes."""
    for seed in range(40):
        rng = random.Random(seed)
        problem = Problem(
            profile=random_profile(rng, num_layers=8), num_microbatches=16, fault_tolerance=1
        )
        nodes = nodes_named(*(f"n{i:02}" for i in range(rng.randint(6, 16))))
        plan = instantiate(problem, nodes).plan
        left = rng.sample(nodes, len(nodes) - rng.randint(1, 3))
        held = {n.node_id: holdings(plan).get(n.node_id, frozenset()) for n in left}
        answer = reconfigure(problem, left, running(plan), held, horizon_seconds=LONG)
        optimum = instantiate(problem, left).plan.iteration_seconds
        assert answer.chosen.plan.iteration_seconds <= 1.05 * optimum


def test_without_a_holder_a_layer_is_copied_from_nobody() -> None:
    """A layer that no node holds has no source: it must come from a checkpoint."""
    problem = small_job(fault_tolerance=0)
    answer = reconfigure(problem, nodes_named("a", "b"), [], {}, horizon_seconds=LONG)
    assert {copy.source for copy in answer.chosen.copies} == {""}
    assert {copy.layer for copy in answer.chosen.copies} == set(range(8))


def test_a_slow_node_is_left_out_when_that_is_faster() -> None:
    """A node measured at a tenth of its speed would slow its whole pipeline."""
    problem = small_job(min_nodes_per_pipeline=1)
    nodes = nodes_named(*"abcd")
    plan = instantiate(problem, nodes).plan
    slow = [*nodes[:3], Node(node_id="d", relative_speed=0.01)]
    answer = reconfigure(problem, slow, running(plan), holdings(plan), horizon_seconds=LONG)
    assert answer.chosen.plan.idle_node_ids == ("d",)


def test_no_more_nodes_than_allowed() -> None:
    problem = small_job(max_nodes=4)
    answer = reconfigure(problem, nodes_named(*"abcdefg"), [], {}, horizon_seconds=LONG)
    assert sum(shape(answer.chosen.plan)) == 4


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


def test_plans_made_ahead_are_those_made_on_the_spot() -> None:
    """For every single loss; where the loss leaves too few nodes, so does the plan made ahead."""
    for fault_tolerance, names in [(1, "abcdefg"), (0, "ab")]:
        problem = small_job(fault_tolerance=fault_tolerance)
        nodes = nodes_named(*names)
        plan = instantiate(problem, nodes).plan
        held = holdings(plan)
        ahead = dict(plan_ahead(problem, nodes, running(plan), held, horizon_seconds=600))
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
