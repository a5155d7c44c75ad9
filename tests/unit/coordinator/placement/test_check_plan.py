"""A plan that cannot be carried out is refused, with the field and what it must be."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.api.common.v1 import profile_pb2
from planaria.api.planner.v1 import planner_service_pb2 as planner_pb
from planaria_common.errors import PlanariaError
from planaria_common.messages import from_message, to_message
from planaria_coordinator.domain.placement.check_plan import (
    completed_plan,
    plan_problem,
    with_node_indices,
)
from planaria_coordinator.domain.placement.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.placement.planner_query import (
    HardwareProfile,
    LayerProfile,
    ModelProfile,
    NodeKind,
    PlanNode,
    PlanQuery,
    Problem,
)
from planaria_planner.changes.reconfigure import reconfigure
from planaria_planner.plans.instantiate import instantiate
from planaria_planner.service import convert
from unit.coordinator.simulation.fake_planner import make_plan

NODES = ("a", "b", "c", "d")


def query(
    *,
    memory_bytes: int = 1000,
    num_layers: int = 6,
    num_microbatches: int = 8,
    node_ids: tuple[str, ...] = NODES,
    min_nodes_per_pipeline: int = 1,
    fault_tolerance: int = 0,
) -> PlanQuery:
    """Return a question about layers of 30 bytes of state and 10 of activations."""
    kind = NodeKind(name="k", accelerators_per_node=2, accelerator_memory_bytes=memory_bytes)
    layer = LayerProfile(
        name="layer",
        forward_seconds=1.0,
        backward_seconds=2.0,
        parameter_bytes=10,
        state_bytes=30,
        activation_bytes=10,
        output_bytes=1,
    )
    return PlanQuery(
        problem=Problem(
            profile=ModelProfile(
                microbatch_size=1,
                hardware=HardwareProfile(
                    node_kinds=(kind,),
                    intra_node_bytes_per_second=1e9,
                    inter_node_bytes_per_second=1e9,
                    link_latency_seconds=0.0,
                ),
                layers=(layer,) * num_layers,
            ),
            num_microbatches=num_microbatches,
            fault_tolerance=fault_tolerance,
            min_nodes_per_pipeline=min_nodes_per_pipeline,
        ),
        nodes=tuple(PlanNode(node_id=node_id, kind="k") for node_id in node_ids),
    )


PLAN = make_plan(["a", "b", "c"], 2, 6, 8)
"""a and c, each with three of six layers; b with all."""


def problem(plan: Plan, asked: PlanQuery | None = None, *, fault_tolerance: int = 1) -> str | None:
    asked = asked or query()
    return plan_problem(plan, asked, fault_tolerance=fault_tolerance, node_ids=NODES)


def change(pipeline: int, stage: int, **fields: object) -> Plan:
    """Return the plan with some fields of a stage changed."""

    def changed(old: Pipeline) -> Pipeline:
        stages = list(old.stages)
        stages[stage] = replace(stages[stage], **fields)  # type: ignore[arg-type]
        return replace(old, stages=tuple(stages))

    return with_pipeline(pipeline, changed)


def with_pipeline(index: int, changed: Callable[[Pipeline], Pipeline]) -> Plan:
    pipelines = list(PLAN.pipelines)
    pipelines[index] = changed(pipelines[index])
    return replace(PLAN, pipelines=tuple(pipelines))


def deal(*microbatches: tuple[int, ...]) -> Plan:
    pipelines = (
        replace(pipeline, microbatches=mine)
        for pipeline, mine in zip(PLAN.pipelines, microbatches, strict=True)
    )
    return replace(PLAN, pipelines=tuple(pipelines))


def test_a_sound_plan_has_no_problem() -> None:
    assert problem(PLAN) is None
    assert PLAN.sizes == (2, 1)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(PLAN, pipelines=()), "pipelines is empty: at least one must cover the layers"),
        (
            with_pipeline(0, lambda p: replace(p, stages=())),
            "pipelines[0].stages cover 0 layers, must cover 6",
        ),
        (change(0, 0, first_layer=1), "pipelines[0].stages[0].first_layer is 1, must be 0"),
        (change(0, 1, first_layer=2), "pipelines[0].stages[1].first_layer is 2, must be 3"),
        (change(0, 0, num_layers=0), "pipelines[0].stages[0].num_layers is 0, must be 1 to 6"),
        (change(0, 1, num_layers=4), "pipelines[0].stages[1].num_layers is 4, must be 1 to 3"),
        (change(1, 0, num_layers=5), "pipelines[1].stages cover 5 layers, must cover 6"),
        (change(1, 0, node_id="z"), "pipelines[1].stages[0].node_id is 'z', must be one of a, b"),
        (
            change(1, 0, node_id="a", accelerators=(1,)),
            "pipelines[1].stages[0].node_id is a, which pipelines[0] has: must be a node of one",
        ),
        (change(0, 0, accelerators=()), "stages[0].accelerators has 0 entries, must have 1"),
        (change(0, 0, accelerators=(0, 1)), "stages[0].accelerators has 2 entries, must have 1"),
        (change(0, 0, accelerators=(2,)), "stages[0].accelerators is 2, must be below 2"),
        (
            change(0, 1, node_id="a", node_index=0),
            "pipelines[0].stages[1].accelerators is 0, which an earlier stage has: must be another",
        ),
        (change(0, 1, node_index=0), "pipelines[0].stages[1].node_index is 0, must be 1"),
        (deal((0, 1, 2, 3), (4, 5, 6)), "pipelines.microbatches lack 7: must have each of the 8"),
        (deal((0, 1, 2, 3, 4), (4, 5, 6, 7)), "pipelines[0].microbatches has 4, which comes 2"),
        (deal((0, 1, 2, 3), (4, 5, 6, 7, 8)), "pipelines[1].microbatches has 8, must be below 8"),
        (deal(tuple(range(8)), ()), "pipelines[1].microbatches is empty, must have at least one"),
        (
            with_pipeline(1, lambda p: replace(p, stages=p.stages * 2)),
            "pipelines[1].stages[1].first_layer is 0, must be 6",
        ),
    ],
)
def test_a_plan_that_cannot_be_carried_out_says_why(plan: Plan, words: str) -> None:
    """The field comes first, then what is right."""
    assert words in (problem(plan) or "")


def test_the_stages_of_a_node_follow_each_other() -> None:
    """The planner could not go on from anything else."""
    first, second = PLAN.pipelines[0].stages
    back = Stage(first_layer=5, num_layers=1, node_index=0, node_id="a", accelerators=(1,))
    there_and_back = (first, replace(second, num_layers=2), back)
    plan = with_pipeline(0, lambda p: replace(p, stages=there_and_back))
    words = "pipelines[0].stages[2].node_id is a, an earlier node's: stages of one node must follow"
    assert words in (problem(plan) or "")


def test_only_nodes_that_are_offered_and_there_may_be_used() -> None:
    """A node that the job has and that was not offered is refused, and one that went meanwhile."""
    without_c = query(node_ids=("a", "b"))
    assert "node_id is 'c', must be one of a, b" in (problem(PLAN, without_c) or "")
    gone = plan_problem(PLAN, query(), fault_tolerance=0, node_ids=("a", "b"))
    assert "node_id is 'c', must be one of a, b" in (gone or "")


def test_a_pipeline_spans_as_many_nodes_as_the_job_asks_for() -> None:
    asked = query(min_nodes_per_pipeline=2)
    assert "pipelines[1] has 1 node, must have 2" in (problem(PLAN, asked) or "")


def test_every_layer_needs_one_replica_more_than_losses_to_survive() -> None:
    """Two nodes of one pipeline are not two replicas of a layer."""
    words = "layer 0 is on 2 nodes, must be on 3 (resilience.fault_tolerance)"
    assert words in (problem(PLAN, fault_tolerance=2) or "")


def test_a_plan_must_fit_into_memory() -> None:
    """b holds all six layers: 180 bytes of state, and 60 a microbatch in flight: one at a time."""
    assert problem(PLAN, query(memory_bytes=240)) is None
    words = "stages[0] does not fit into b: must have fewer layers, or its pipeline at most 0"
    assert words in (problem(PLAN, query(memory_bytes=239)) or "")


def test_memory_may_bound_the_microbatches_of_a_pipeline() -> None:
    """The first of two stages keeps two microbatches; where one fits, the pipeline may have one."""
    plan = make_plan(["a", "b"], 1, 6, 2)
    asked = query(memory_bytes=149, num_microbatches=2)
    assert "its pipeline at most 1 microbatches a step instead of 2" in (
        problem(plan, asked, fault_tolerance=0) or ""
    )
    alone = make_plan(["a", "b"], 1, 6, 1)
    asked = query(memory_bytes=149, num_microbatches=1)
    assert problem(alone, asked, fault_tolerance=0) is None
    assert completed_plan(alone, asked).pipelines[0].max_microbatches == 1


def test_all_but_stages_and_microbatches_is_computed() -> None:
    """A scheduler may say anything of the rest, such as that a step takes for ever."""
    said = replace(
        PLAN,
        pipelines=tuple(
            replace(p, iteration_seconds=float("nan"), max_microbatches=1) for p in PLAN.pipelines
        ),
        idle_node_ids=("a",),
        iteration_seconds=1e300,
        fault_tolerance=7,
    )
    plan = completed_plan(said, query())
    # Of three layers a pass takes 9 s: 18 s through both stages and 9 s for each further one.
    assert [pipeline.iteration_seconds for pipeline in plan.pipelines] == [45.0, 72.0]
    assert [pipeline.max_microbatches for pipeline in plan.pipelines] == [0, 0]
    assert (plan.iteration_seconds, plan.idle_node_ids, plan.fault_tolerance) == (72.0, ("d",), 1)


numbers = st.integers(0, 9) | st.integers(0, 2**32 - 1)
stages = st.builds(
    Stage,
    first_layer=numbers,
    num_layers=numbers,
    node_index=numbers,
    node_id=st.sampled_from(("", "z", *NODES)),
    accelerators=st.lists(numbers, max_size=2).map(tuple),
)
pipelines = st.builds(
    Pipeline,
    stages=st.lists(stages, max_size=3).map(tuple),
    microbatches=st.lists(numbers, max_size=4).map(tuple),
    iteration_seconds=st.floats(),
    max_microbatches=numbers,
)


@given(st.builds(Plan, pipelines=st.lists(pipelines, max_size=3).map(tuple)))
def test_garbage_is_refused_and_never_a_fault(plan: Plan) -> None:
    """Whatever a scheduler sends, the check answers."""
    assert problem(with_node_indices(plan), query(num_layers=20)) is not None


@given(
    num_nodes=st.integers(1, 5),
    memory_bytes=st.integers(60, 400),
    num_microbatches=st.integers(1, 9),
    fault_tolerance=st.integers(0, 2),
    min_nodes_per_pipeline=st.integers(1, 2),
)
def test_every_plan_of_the_planner_passes(
    num_nodes: int,
    memory_bytes: int,
    num_microbatches: int,
    fault_tolerance: int,
    min_nodes_per_pipeline: int,
) -> None:
    """The planner and the check estimate memory alike; its plans keep what they promise."""
    asked = query(
        memory_bytes=memory_bytes,
        num_microbatches=num_microbatches,
        node_ids=tuple(f"n{index}" for index in range(num_nodes)),
        min_nodes_per_pipeline=min_nodes_per_pipeline,
        fault_tolerance=fault_tolerance,
    )
    message = planner_pb.Problem(
        profile=to_message(asked.problem.profile, profile_pb2.ModelProfile),
        num_microbatches=num_microbatches,
        fault_tolerance=fault_tolerance,
        min_nodes_per_pipeline=min_nodes_per_pipeline,
        max_stage_accelerators=1,
    )
    node_messages = [to_message(node, planner_pb.PlanNode) for node in asked.nodes]
    try:
        its_problem = convert.problem_from(message)
        nodes = convert.nodes_from(its_problem.profile, node_messages)
        first = convert.plan_message(instantiate(its_problem, nodes).plan)
    except PlanariaError:
        return  # not possible
    check(asked, from_message(first, Plan))
    assert from_message(first, Plan).fault_tolerance >= fault_tolerance
    for index in range(num_nodes):
        left = tuple(node for node in asked.nodes if node.node_id != f"n{index}")
        try:
            following = reconfigure(
                its_problem,
                nodes[:index] + nodes[index + 1 :],
                convert.running_from(first),
                {},
                horizon_seconds=60.0,
            )
        except PlanariaError:
            continue
        answer = convert.reconfigure_message(following).plan
        check(replace(asked, nodes=left), from_message(answer, Plan))


def check(asked: PlanQuery, plan: Plan) -> None:
    node_ids = [node.node_id for node in asked.nodes]
    tolerance = plan.fault_tolerance
    assert plan_problem(plan, asked, fault_tolerance=tolerance, node_ids=node_ids) is None
