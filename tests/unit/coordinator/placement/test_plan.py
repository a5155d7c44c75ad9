"""A plan that cannot be carried out is refused, and the reason given."""

from dataclasses import replace

import pytest

from planaria_coordinator.domain.placement.plan import Pipeline, Stage, plan_problem
from unit.coordinator.simulation.fake_planner import make_plan


def test_a_sound_plan_has_no_problem() -> None:
    plan = make_plan(["a", "b", "c"], 2, 6, 8)
    nodes = frozenset("abc")
    assert plan_problem(plan, num_layers=6, num_microbatches=8, node_ids=nodes) is None
    assert plan.sizes == (2, 1)


@pytest.mark.parametrize(
    ("num_layers", "num_microbatches", "nodes", "words"),
    [
        (7, 8, "abc", "covers 6 of 7 layers"),
        (6, 9, "abc", "each of the 9 microbatches exactly once"),
        (6, 8, "ab", "uses c, which the job does not have"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_says_why(
    num_layers: int, num_microbatches: int, nodes: str, words: str
) -> None:
    plan = make_plan(["a", "b", "c"], 2, 6, 8)
    problem = plan_problem(
        plan,
        num_layers=num_layers,
        num_microbatches=num_microbatches,
        node_ids=frozenset(nodes),
    )
    assert problem is not None
    assert words in problem


def _on(stage: Stage, node_id: str, accelerator: int) -> Stage:
    return replace(stage, node_id=node_id, accelerators=(accelerator,))


def test_a_plan_that_uses_an_accelerator_twice_is_refused() -> None:
    """Within a pipeline or across pipelines; two accelerators of one node are not one."""
    plan = make_plan(["a", "b", "c"], 2, 6, 8)
    first, second = plan.pipelines

    def problem(*pipelines: Pipeline) -> str | None:
        changed = replace(plan, pipelines=pipelines)
        return plan_problem(changed, num_layers=6, num_microbatches=8, node_ids=frozenset("abc"))

    def on_one_node(*accelerators: int) -> Pipeline:
        stages = (_on(s, "a", index) for s, index in zip(first.stages, accelerators, strict=True))
        return replace(first, stages=tuple(stages))

    taken = first.stages[0]
    shared = replace(
        second,
        stages=(_on(second.stages[0], taken.node_id, taken.accelerators[0]),),
    )

    used_twice = f"accelerator {taken.accelerators[0]} of {taken.node_id} is used twice"
    assert problem(first, shared) == used_twice
    assert problem(on_one_node(1, 1), second) == "accelerator 1 of a is used twice"
    assert problem(on_one_node(0, 1), second) is None
