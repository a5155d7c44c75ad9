"""However many kinds of node there are, planning stays quick, valid and as good as it can be."""

import dataclasses
import random
from collections.abc import Sequence

import pytest

from planaria_planner.cost.cost_model import CostModel
from planaria_planner.cost.profile import ModelProfile, NodeKind
from planaria_planner.plans.instantiate import Instantiation, instantiate
from planaria_planner.plans.node_kinds import MAX_KINDS, merge_kinds
from planaria_planner.plans.nodes import Node
from planaria_planner.plans.problem import Problem
from unit.planner.profiles import equal_layers, random_profile


def with_kinds(profile: ModelProfile, kinds: Sequence[NodeKind]) -> ModelProfile:
    hardware = dataclasses.replace(profile.hardware, node_kinds=tuple(kinds))
    return dataclasses.replace(profile, hardware=hardware)


def kind(name: int, *, accelerators: int = 1, memory: int, speed: float = 1.0) -> NodeKind:
    return NodeKind(
        name=f"kind-{name}",
        accelerators_per_node=accelerators,
        accelerator_memory_bytes=memory,
        relative_speed=speed,
    )


def check_valid_on_real_nodes(
    profile: ModelProfile, nodes: list[Node], answer: Instantiation
) -> None:
    """On the nodes as they are every pipeline fits, and is no slower than predicted."""
    kinds = profile.hardware.node_kinds
    real_kinds = [
        dataclasses.replace(
            kinds[node.kind],
            name=node.node_id,
            relative_speed=kinds[node.kind].relative_speed * node.relative_speed,
        )
        for node in nodes
    ]
    index_of = {node.node_id: index for index, node in enumerate(nodes)}
    model = CostModel(with_kinds(profile, real_kinds))
    for pipeline in answer.plan.pipelines:
        crew = [index_of[node_id] for node_id in pipeline.node_ids]
        real = model.pipeline_cost(pipeline.stages, crew)
        share = len(pipeline.microbatches)
        assert real.max_microbatches is None or share <= real.max_microbatches
        assert real.iteration_seconds(share) <= pipeline.iteration_seconds * (1 + 1e-12)
        for place, index in enumerate(crew):
            used = sum(stage.accelerators for stage in pipeline.stages if stage.node == place)
            assert used <= real_kinds[index].accelerators_per_node


def test_kinds_that_make_no_difference_are_one() -> None:
    """Twenty nodes with memory to spare, each reported to the byte, plan like twenty equal ones."""
    plain = equal_layers(12)
    profile = with_kinds(plain, [kind(i, memory=(1 << 40) + i) for i in range(20)])
    nodes = [Node(node_id=f"n{i:02}", kind=i) for i in range(20)]
    merged, pool = merge_kinds(profile, nodes)
    assert len(merged.hardware.node_kinds) == 1
    assert {node.kind for node in pool} == {0}

    answer = instantiate(Problem(profile=profile, num_microbatches=64, fault_tolerance=1), nodes)
    equal = instantiate(
        Problem(profile=plain, num_microbatches=64, fault_tolerance=1),
        [Node(node_id=node.node_id) for node in nodes],
    )
    assert answer.plan == equal.plan


@pytest.mark.parametrize("seed", range(20))
def test_many_kinds_become_few_and_the_plan_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    plain = random_profile(rng, num_layers=6, accelerators=(4,))
    largest = max(layer.state_bytes + layer.activation_bytes for layer in plain.layers)
    profile = with_kinds(
        plain,
        [
            kind(
                i,
                accelerators=rng.choice([1, 2, 4]),
                memory=int(largest * rng.uniform(1.1, 4)),
                speed=rng.uniform(0.5, 2),
            )
            for i in range(9)
        ],
    )
    nodes = [
        Node(node_id=f"n{i:02}", kind=rng.randrange(9), relative_speed=rng.choice([1.0, 0.8]))
        for i in range(18)
    ]
    assert len(merge_kinds(profile, nodes)[0].hardware.node_kinds) <= MAX_KINDS
    answer = instantiate(Problem(profile=profile, num_microbatches=20, fault_tolerance=1), nodes)
    check_valid_on_real_nodes(profile, nodes, answer)


def test_hundreds_of_nodes_of_two_kinds_are_planned_kind_by_kind() -> None:
    """Too many counts to mix kinds: still valid, all microbatches run, nobody straddles kinds."""
    profile = with_kinds(
        equal_layers(40, accelerators=2),
        [kind(0, accelerators=2, memory=15_000), kind(1, accelerators=1, memory=15_000, speed=1.5)],
    )
    nodes = [Node(node_id=f"n{i:03}", kind=i % 2) for i in range(300)]
    problem = Problem(profile=profile, num_microbatches=3000, fault_tolerance=2)
    answer = instantiate(problem, nodes)
    check_valid_on_real_nodes(profile, nodes, answer)
    assert sum(len(p.microbatches) for p in answer.plan.pipelines) == 3000
    by_id = {node.node_id: node.kind for node in nodes}
    kinds = [{by_id[node_id] for node_id in p.node_ids} for p in answer.plan.pipelines]
    assert all(len(one) == 1 for one in kinds)
    assert {0} in kinds
    assert {1} in kinds
