"""A stated bound is one: no grouping of the nodes is faster; what is proven is optimal."""

import random
from dataclasses import replace

from planaria_common.errors import PlanariaError
from planaria_planner.cost.profile import NodeKind
from planaria_planner.plans.explain import explain, in_words
from planaria_planner.plans.instantiate import instantiate
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Problem
from unit.planner.brute_force import best_seconds_on_named_nodes, every_partition
from unit.planner.profiles import equal_layers, random_profile


def test_no_plan_beats_the_bound() -> None:
    """Two kinds with measured speeds against every grouping of the nodes."""
    proven = gaps = 0
    for seed in range(250):
        rng = random.Random(30_000 + seed)
        profile = random_profile(
            rng,
            num_layers=rng.randint(1, 4),
            accelerators=rng.choice([(1, 1), (1, 2), (2, 1)]),
            tight=rng.random() < 0.5,
        )
        measured = rng.random() < 0.7
        nodes = [
            Node(
                node_id=f"n{i}",
                kind=rng.randint(0, 1),
                relative_speed=rng.choice([1.0, 0.8, 0.4]) if measured else 1.0,
            )
            for i in range(rng.randint(1, 5))
        ]
        fault_tolerance = rng.choice([0, 0, 1])
        problem = Problem(
            profile=profile,
            num_microbatches=rng.randint(fault_tolerance + 1, 6),
            fault_tolerance=fault_tolerance,
        )
        try:
            answer = instantiate(problem, nodes)
        except PlanariaError:
            continue
        limits = [sum(node.kind == kind for node in nodes) for kind in range(2)]
        optimum = best_seconds_on_named_nodes(
            list(every_partition(profile, tuple(limits))),
            tuple((node.kind, node.relative_speed) for node in nodes),
            fault_tolerance + 1,
            problem.num_microbatches,
        )
        seconds, bound = answer.plan.iteration_seconds, answer.lower_bound_seconds
        assert bound <= optimum * (1 + 1e-12), f"seed {seed}"
        assert optimum <= seconds * (1 + 1e-12), f"seed {seed}"
        if bound == seconds:
            proven += 1
            assert abs(seconds - optimum) <= 1e-12 * optimum, f"seed {seed}"
        else:
            gaps += 1
            assert "not proven the fastest" in in_words(answer, explain(answer))
    assert proven > 60
    assert gaps > 20


def test_many_kinds_with_many_measured_speeds_are_close_to_the_bound() -> None:
    """Five kinds that differ in everything: the plan is within a fifth of what cannot be beaten."""
    base = equal_layers(50, accelerators=8)
    machines = (
        *((8, 1 << 16, 1.0), (4, 1 << 16, 1.0), (8, 1 << 15, 0.6)),
        *((2, 1 << 17, 1.4), (4, 1 << 15, 0.5)),
    )
    kinds = tuple(
        NodeKind(
            name=f"kind-{index}",
            accelerators_per_node=accelerators,
            accelerator_memory_bytes=memory_bytes,
            relative_speed=speed,
        )
        for index, (accelerators, memory_bytes, speed) in enumerate(machines)
    )
    profile = replace(base, hardware=replace(base.hardware, node_kinds=kinds))
    rng = random.Random(5)
    nodes = [
        Node(node_id=f"n{i}", kind=rng.randrange(5), relative_speed=rng.uniform(0.7, 1))
        for i in range(60)
    ]
    answer = instantiate(Problem(profile=profile, num_microbatches=2048, fault_tolerance=1), nodes)
    assert answer.lower_bound_seconds < answer.plan.iteration_seconds
    assert answer.plan.iteration_seconds < 1.2 * answer.lower_bound_seconds


def test_two_kinds_too_many_to_mix_of_which_neither_holds_the_model_hold_it_together() -> None:
    """By a pipeline that counts on the least of what they have, which is not said to be optimal."""
    base = equal_layers(40, memory_bytes=1900)  # a layer a node
    (kind,) = base.hardware.node_kinds
    other = replace(kind, name="other", accelerator_memory_bytes=1950, relative_speed=1.1)
    profile = replace(base, hardware=replace(base.hardware, node_kinds=(kind, other)))
    nodes = [Node(node_id=f"n{i}", kind=i % 2) for i in range(78)]
    answer = instantiate(Problem(profile=profile, num_microbatches=8), nodes)
    assert [len(pipeline.node_ids) for pipeline in answer.plan.pipelines] == [40]
    assert not answer.is_exhaustive
    assert answer.lower_bound_seconds < answer.plan.iteration_seconds
    assert "not proven the fastest" in in_words(answer, explain(answer))
