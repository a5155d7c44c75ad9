"""Whatever happens to its nodes, a job has a next plan: whole, fitting, fast, cheap to reach.

Hypothesis makes up the lives: which nodes are lost, join, leave on notice or turn slow, and how
soon the next change is expected.
"""

import dataclasses
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_planner.changes.candidates import RunningPipeline
from planaria_planner.changes.reconfigure import Candidate, Reconfiguration, reconfigure
from planaria_planner.cost.cost_model import layers_by_node
from planaria_planner.plans.instantiate import instantiate
from planaria_planner.plans.nodes import Node, nodes_per_kind
from planaria_planner.plans.pipeline_search import select
from planaria_planner.plans.problem import Pipeline, Plan, Problem
from planaria_planner.templates.templates import generate_templates
from unit.planner.profiles import random_profile

LONG = 1e7
"""A horizon so long that getting there costs nothing."""

HORIZONS = st.sampled_from([0.0, 1.0, 60.0, LONG])
SPEEDS = st.sampled_from([1.0, 1.0, 0.7])
MOST_NODES = 24

Held = dict[str, frozenset[int]]


class Life(RuleBasedStateMachine):
    """A job on nodes that come and go; every step is a change, and ends with the next plan."""

    num_steps = 0

    @initialize(
        seed=st.integers(0, 2**32),
        fault_tolerance=st.integers(0, 2),
        accelerators=st.sampled_from([(1,), (1,), (2,), (1, 2)]),
        num_nodes=st.integers(2, 14),
    )
    def start(
        self, seed: int, fault_tolerance: int, accelerators: tuple[int, ...], num_nodes: int
    ) -> None:
        self.rng = random.Random(seed)
        self.problem = Problem(
            profile=random_profile(
                self.rng,
                num_layers=self.rng.randint(2, 8),
                accelerators=accelerators,
                tight=self.rng.random() < 0.5,
            ),
            num_microbatches=self.rng.randint(fault_tolerance + 1, 16),
            fault_tolerance=fault_tolerance,
            min_nodes_per_pipeline=self.rng.choice([0, 1, 2]),
        )
        self.nodes: dict[str, Node] = {}
        self.num_joined = 0
        self.pipelines: tuple[Pipeline, ...] = ()
        self.held: Held = {}
        for _ in range(num_nodes):
            self._add(self.rng.randrange(len(accelerators)), 1.0)
        self._reconfigure(LONG, {})

    @precondition(lambda self: self.nodes)
    @rule(count=st.integers(1, 4), horizon_seconds=HORIZONS)
    def lose(self, count: int, horizon_seconds: float) -> None:
        """Nodes die at the same moment, with all that they hold."""
        for name in self._some(count):
            del self.nodes[name]
            self.held.pop(name, None)
        self._reconfigure(horizon_seconds, {})

    @precondition(lambda self: len(self.nodes) < MOST_NODES)
    @rule(count=st.integers(1, 3), speed=SPEEDS, horizon_seconds=HORIZONS)
    def join(self, count: int, speed: float, horizon_seconds: float) -> None:
        """Nodes join that hold nothing."""
        for _ in range(count):
            self._add(self.rng.randrange(len(self.problem.profile.hardware.node_kinds)), speed)
        self._reconfigure(horizon_seconds, {})

    @precondition(lambda self: self.nodes)
    @rule(horizon_seconds=HORIZONS)
    def drain(self, horizon_seconds: float) -> None:
        """A node leaves on notice: its layers can still be copied from it."""
        (name,) = self._some(1)
        del self.nodes[name]
        leaving = {name: self.held.pop(name)} if name in self.held else {}
        self._reconfigure(horizon_seconds, leaving)

    @precondition(lambda self: self.nodes)
    @rule(speed=SPEEDS, horizon_seconds=HORIZONS)
    def measure(self, speed: float, horizon_seconds: float) -> None:
        """A node turns out to be slower, or as fast as its kind again."""
        (name,) = self._some(1)
        self.nodes[name] = dataclasses.replace(self.nodes[name], relative_speed=speed)
        self._reconfigure(horizon_seconds, {})

    def _add(self, kind: int, speed: float) -> None:
        name = f"node-{self.rng.randrange(1000)}-{self.num_joined}"
        self.num_joined += 1
        self.nodes[name] = Node(node_id=name, kind=kind, relative_speed=speed)

    def _some(self, count: int) -> list[str]:
        return self.rng.sample(sorted(self.nodes), min(count, len(self.nodes)))

    def _reconfigure(self, horizon_seconds: float, leaving: Held) -> None:
        type(self).num_steps += 1
        held = {**self.held, **leaving}
        pipelines = running(self.pipelines)
        try:
            answer = self._ask(pipelines, held, horizon_seconds)
        except PlanariaError as error:
            check_refusal(self.problem, self.nodes, error, has_run=bool(pipelines))
            self.pipelines = ()
            return
        shuffled = self._ask(pipelines, held, horizon_seconds, shuffle=True)
        assert answer == shuffled, "the answer depends on the order of its inputs"
        check_answer(self.problem, self.nodes, held, answer)
        for candidate in answer.candidates:
            check_bytes(self.problem, self.nodes, held, pipelines, candidate)
        self.pipelines = answer.chosen.plan.pipelines
        self.held = {name: layers for name, layers in self.held.items() if name in self.nodes}
        self.held.update(holdings(self.pipelines))
        self._check_settled()

    def _ask(
        self,
        pipelines: Sequence[RunningPipeline],
        held: Held,
        horizon_seconds: float,
        *,
        shuffle: bool = False,
    ) -> Reconfiguration:
        nodes, pipelines = list(self.nodes.values()), list(pipelines)
        if shuffle:
            self.rng.shuffle(nodes)
            self.rng.shuffle(pipelines)
            held = dict(reversed(held.items()))
        return reconfigure(self.problem, nodes, pipelines, held, horizon_seconds=horizon_seconds)

    def _check_settled(self) -> None:
        """Once the next change is far away, the plan is hardly slower than one from scratch."""
        settled = self._ask(running(self.pipelines), self.held, LONG).chosen.plan
        fault_tolerance = min(self.problem.fault_tolerance, len(self.pipelines) - 1)
        from_scratch = instantiate(
            dataclasses.replace(self.problem, fault_tolerance=fault_tolerance),
            list(self.nodes.values()),
        ).plan
        assert settled.iteration_seconds <= 1.05 * from_scratch.iteration_seconds


def running(pipelines: Sequence[Pipeline]) -> list[RunningPipeline]:
    return [RunningPipeline(node_ids=p.node_ids, stages=p.stages) for p in pipelines]


def holdings(pipelines: Sequence[Pipeline]) -> Held:
    return {
        node_id: frozenset(layers)
        for pipeline in pipelines
        for node_id, layers in zip(pipeline.node_ids, layers_by_node(pipeline.stages), strict=True)
    }


def check_refusal(
    problem: Problem, nodes: Mapping[str, Node], error: PlanariaError, *, has_run: bool
) -> None:
    """There really is no plan; and it is for want of nodes, unless the model can never run."""
    assert most_pipelines_by_trial(problem, list(nodes.values())) == 0
    if error.reason is ErrorReason.NOT_ENOUGH_NODES:
        assert int(error.metadata["have"]) == len(nodes) < int(error.metadata["need"])
    else:
        impossible = {ErrorReason.MODEL_DOES_NOT_FIT, ErrorReason.INVALID_ARGUMENT}
        assert error.reason in impossible
        assert not has_run


def check_answer(
    problem: Problem, nodes: Mapping[str, Node], held: Held, answer: Reconfiguration
) -> None:
    plan = answer.chosen.plan
    used = [node_id for pipeline in plan.pipelines for node_id in pipeline.node_ids]
    assert sorted([*used, *plan.idle_node_ids]) == sorted(nodes), "a node is lost or used twice"
    for pipeline in plan.pipelines:
        layers = [layer for stage in pipeline.stages for layer in stage.layers]
        assert layers == list(range(problem.profile.num_layers)), "a layer is not placed once"
        assert len(pipeline.node_ids) >= answer.min_nodes
        check_memory(problem, nodes, pipeline)
    microbatches = [m for pipeline in plan.pipelines for m in pipeline.microbatches]
    assert microbatches == list(range(problem.num_microbatches))

    possible = most_pipelines_by_trial(problem, list(nodes.values()))
    assert len(plan.pipelines) >= min(possible, problem.fault_tolerance + 1)
    check_copies(plan, held, answer.chosen)
    best = max(candidate.steps_within_horizon for candidate in answer.candidates)
    assert answer.chosen.steps_within_horizon == best


def check_memory(problem: Problem, nodes: Mapping[str, Node], pipeline: Pipeline) -> None:
    """No stage needs more than its accelerators have, by planning.md 1 once more."""
    microbatches = len(pipeline.microbatches)
    assert microbatches >= 1
    for index, stage in enumerate(pipeline.stages):
        kind = nodes[pipeline.node_ids[stage.node]].kind
        memory_bytes = problem.profile.hardware.node_kinds[kind].accelerator_memory_bytes
        layers = [problem.profile.layers[layer] for layer in stage.layers]
        in_flight = min(microbatches, len(pipeline.stages) - index)
        needed = sum(layer.state_bytes + in_flight * layer.activation_bytes for layer in layers)
        assert needed <= memory_bytes * stage.accelerators


def check_copies(plan: Plan, held: Held, chosen: Candidate) -> None:
    """Each layer that a node lacks is copied once, from a node that holds it if any does."""
    needed = {
        (layer, node_id)
        for node_id, layers in holdings(plan.pipelines).items()
        for layer in layers - held.get(node_id, frozenset())
    }
    assert {(copy.layer, copy.destination) for copy in chosen.copies} == needed
    assert len(chosen.copies) == len(needed)
    for copy in chosen.copies:
        holders = {node_id for node_id, layers in held.items() if copy.layer in layers}
        assert copy.source in holders if holders else copy.source == ""


def check_bytes(
    problem: Problem,
    nodes: Mapping[str, Node],
    held: Held,
    before: Sequence[RunningPipeline],
    candidate: Candidate,
) -> None:
    """No more than where each place in turn goes to the free node that lacks the least of it.

    A place goes to a node of the same kind, and as fast as the slowest such one of its pipeline.
    """
    sizes = [layer.state_bytes for layer in problem.profile.layers]
    kept = {(pipeline.node_ids, pipeline.stages) for pipeline in before}
    new = [p for p in candidate.plan.pipelines if (p.node_ids, p.stages) not in kept]
    staying = {n for p in candidate.plan.pipelines if p not in new for n in p.node_ids}
    free = sorted(set(nodes) - staying)
    # What a kept pipeline lacks, for instance after a change that was cut short, is not placed.
    greedy_bytes = sum(
        sizes[layer]
        for pipeline in candidate.plan.pipelines
        if pipeline not in new
        for node_id, layers in zip(pipeline.node_ids, layers_by_node(pipeline.stages), strict=True)
        for layer in layers
        if layer not in held.get(node_id, ())
    )
    for pipeline in new:
        crew = [nodes[node_id] for node_id in pipeline.node_ids]
        for node, layers in zip(crew, layers_by_node(pipeline.stages), strict=True):
            slowest = min(other.relative_speed for other in crew if other.kind == node.kind)
            lacking = {
                name: sum(sizes[layer] for layer in layers if layer not in held.get(name, ()))
                for name in free
                if nodes[name].kind == node.kind and nodes[name].relative_speed >= slowest
            }
            if not lacking:
                return  # this order of places leads into a dead end
            chosen = min(lacking, key=lambda name: (lacking[name], name))
            greedy_bytes += lacking[chosen]
            free.remove(chosen)
    assert sum(copy.num_bytes for copy in candidate.copies) <= greedy_bytes


def most_pipelines_by_trial(problem: Problem, nodes: Sequence[Node]) -> int:
    """Return the most pipelines that run every microbatch, at most f + 1, by trying each number."""
    try:
        templates = generate_templates(
            problem.profile,
            nodes_per_kind(nodes, len(problem.profile.hardware.node_kinds)),
            min_nodes=problem.min_nodes_per_pipeline,
        )
    except PlanariaError:
        return 0
    return max(
        (
            count
            for count in range(1, problem.fault_tolerance + 2)
            if select(
                templates.templates,
                nodes,
                min_pipelines=count,
                num_microbatches=problem.num_microbatches,
            )
        ),
        default=0,
    )


def live(num_steps: int, *, lives: int, steps_per_life: int) -> None:
    """Let Hypothesis make up lives until there were so many steps."""
    Life.num_steps = 0
    while Life.num_steps < num_steps:
        run_state_machine_as_test(
            Life,
            settings=settings(
                max_examples=lives,
                stateful_step_count=steps_per_life,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_every_reachable_state_has_a_next_plan() -> None:
    """All layers and microbatches, f + 1 replicas if possible, near the optimum, few bytes."""
    live(200, lives=20, steps_per_life=10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_state_reachable_in_ten_thousand_changes_has_a_next_plan() -> None:
    """The same, for long."""
    live(10_000, lives=100, steps_per_life=100)
