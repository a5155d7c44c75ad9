"""Templates and plans are optimal: no partition and no plan that exists is faster."""

import math
import random

import pytest

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_planner.cost.cost_model import CostModel
from planaria_planner.cost.profile import ModelProfile
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.pipeline_search import select
from planaria_planner.templates.templates import Template, generate_templates
from unit.planner.brute_force import best_seconds, best_seconds_on_named_nodes, every_partition
from unit.planner.profiles import random_profile

RELATIVE = 1e-12
IMPOSSIBLE = {ErrorReason.MODEL_DOES_NOT_FIT, ErrorReason.NOT_ENOUGH_NODES}
CASES_PER_BATCH = 100


def random_case(rng: random.Random, kinds: int) -> tuple[ModelProfile, tuple[int, ...]]:
    accelerators = tuple(rng.choice([1, 1, 2, 4]) for _ in range(kinds))
    most_layers = {1: 7, 2: 5, 4: 4}[max(accelerators)] - kinds + 1
    profile = random_profile(
        rng,
        num_layers=rng.randint(1, most_layers),
        accelerators=accelerators,
        tight=rng.random() < 0.5,
    )
    return profile, tuple(rng.randint(1, 10 // kinds**2) for _ in accelerators)


def agree(found: float, expected: float) -> bool:
    return found == expected or abs(found - expected) <= RELATIVE * expected


def templates_or_none(
    profile: ModelProfile, nodes_per_kind: tuple[int, ...], min_nodes: int = 0
) -> tuple[Template, ...]:
    try:
        return generate_templates(profile, nodes_per_kind, min_nodes=min_nodes).templates
    except PlanariaError as error:
        if error.reason in IMPOSSIBLE or min_nodes > profile.num_layers:
            return ()
        raise


@pytest.mark.parametrize("batch", range(12))
def test_plans_are_optimal(batch: int) -> None:
    """A plan is as fast as the fastest that trying everything finds, or neither exists."""
    for case in range(CASES_PER_BATCH):
        check_plan_is_optimal(batch * CASES_PER_BATCH + case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_plans_are_optimal_in_a_hundred_thousand_cases() -> None:
    """The same, for long."""
    for seed in range(100_000, 200_000):
        check_plan_is_optimal(seed)


def check_plan_is_optimal(seed: int) -> None:
    rng = random.Random(seed)
    profile, nodes = random_case(rng, kinds=1)
    fault_tolerance = rng.choice([0, 0, 1, 1, 2, 3])
    microbatches = rng.randint(fault_tolerance + 1, 14)
    min_nodes = rng.choice([0, 0, 1, 2])
    expected = best_seconds(
        list(every_partition(profile, nodes)), nodes, fault_tolerance + 1, microbatches, min_nodes
    )
    plan = select(
        templates_or_none(profile, nodes, min_nodes),
        [Node(node_id=f"node-{i}") for i in range(nodes[0])],
        min_pipelines=fault_tolerance + 1,
        num_microbatches=microbatches,
    )
    found = plan.iteration_seconds if plan else math.inf
    assert agree(found, expected), f"seed {seed}"


@pytest.mark.parametrize("batch", range(3))
def test_plans_on_two_kinds_of_node_are_optimal(batch: int) -> None:
    """With two kinds of node, mixed pipelines included, no plan is faster."""
    for case in range(CASES_PER_BATCH):
        check_plan_on_two_kinds_is_optimal(10_000 + batch * CASES_PER_BATCH + case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_plans_on_two_kinds_of_node_are_optimal_in_ten_thousand_cases() -> None:
    """The same, for long."""
    for seed in range(200_000, 210_000):
        check_plan_on_two_kinds_is_optimal(seed)


def check_plan_on_two_kinds_is_optimal(seed: int) -> None:
    rng = random.Random(seed)
    profile, nodes = random_case(rng, kinds=2)
    fault_tolerance = rng.choice([0, 0, 1, 2])
    microbatches = rng.randint(fault_tolerance + 1, 9)
    expected = best_seconds(
        list(every_partition(profile, nodes)), nodes, fault_tolerance + 1, microbatches
    )
    plan = select(
        templates_or_none(profile, nodes),
        [
            Node(node_id=f"node-{kind}-{i}", kind=kind)
            for kind, count in enumerate(nodes)
            for i in range(count)
        ],
        min_pipelines=fault_tolerance + 1,
        num_microbatches=microbatches,
    )
    found = plan.iteration_seconds if plan else math.inf
    assert agree(found, expected), f"seed {seed}"


def test_plans_on_nodes_of_measured_speeds_are_optimal() -> None:
    """With nodes of one kind and different speeds, no way to group the nodes is faster."""
    for case in range(200):
        rng = random.Random(20_000 + case)
        profile = random_profile(rng, num_layers=rng.randint(1, 6), tight=rng.random() < 0.5)
        speeds = [rng.choice([1.0, 1.0, 0.9, 0.6, 0.3]) for _ in range(rng.randint(1, 6))]
        fault_tolerance = rng.choice([0, 0, 1, 2])
        microbatches = rng.randint(fault_tolerance + 1, 7)
        expected = best_seconds_on_named_nodes(
            list(every_partition(profile, (len(speeds),))),
            tuple((0, speed) for speed in speeds),
            fault_tolerance + 1,
            microbatches,
        )
        plan = select(
            templates_or_none(profile, (len(speeds),)),
            [Node(node_id=f"node-{i}", relative_speed=s) for i, s in enumerate(speeds)],
            min_pipelines=fault_tolerance + 1,
            num_microbatches=microbatches,
        )
        found = plan.iteration_seconds if plan else math.inf
        assert agree(found, expected), f"case {case}"


@pytest.mark.parametrize("kinds", [1, 2])
def test_fronts_hold_the_best_partition_for_every_number_of_microbatches(kinds: int) -> None:
    """For each mix of nodes and each M, some template of the front is as fast as any partition."""
    for case in range(150):
        rng = random.Random(1000 * kinds + case)
        profile, nodes = random_case(rng, kinds)
        partitions = list(every_partition(profile, nodes))
        templates = templates_or_none(profile, nodes)
        counts = {tuple(p.node_kinds.count(k) for k in range(kinds)) for p in partitions}
        assert counts == {tuple(t.node_kinds.count(k) for k in range(kinds)) for t in templates}, (
            f"case {case}"
        )
        for count in counts:
            for microbatches in (1, 2, 3, 5, 40):
                expected = min(
                    p.seconds(microbatches)
                    for p in partitions
                    if tuple(p.node_kinds.count(k) for k in range(kinds)) == count
                )
                found = min(
                    (
                        t.cost.iteration_seconds(microbatches)
                        for t in templates
                        if tuple(t.node_kinds.count(k) for k in range(kinds)) == count
                        and microbatches <= (t.cost.max_microbatches or math.inf)
                    ),
                    default=math.inf,
                )
                assert agree(found, expected), f"case {case} {count} {microbatches}"


def test_costs_are_those_of_the_cost_model() -> None:
    """a, b and the microbatches that fit equal a second statement of the formulas."""
    for case in range(100):
        rng = random.Random(case)
        profile, nodes = random_case(rng, kinds=2)
        for partition in every_partition(profile, nodes):
            template = next(
                (
                    t
                    for t in templates_or_none(profile, nodes)
                    if tuple((s.first_layer, s.end_layer, s.node, s.accelerators) for s in t.stages)
                    == partition.cuts
                    and t.node_kinds == partition.node_kinds
                ),
                None,
            )
            if template is not None:
                cost = CostModel(profile).pipeline_cost(template.stages, template.node_kinds)
                assert agree(cost.fixed_seconds, partition.a)
                assert agree(cost.microbatch_seconds, partition.b)
                assert (cost.max_microbatches or math.inf) == partition.cap
                break
