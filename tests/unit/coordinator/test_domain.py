"""The pure parts: liveness, ledger, replicas, plans and profiles."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.job import JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.jobs.submission import requirements_of
from planaria_coordinator.domain.engines.directive import CommitRecord
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.liveness import Liveness, observe_progress, why_node_lost
from planaria_coordinator.domain.engines.outcome import FenceReport, HeldLayer, MeasuredLayer
from planaria_coordinator.domain.job.model_profile import measured_layers, model_profile
from planaria_coordinator.domain.job.requirements import NodeFacts
from planaria_coordinator.domain.job.time_account import Activity, TimeAccount
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.plan import Pipeline, Stage, plan_problem
from planaria_coordinator.domain.placement.planner_query import LayerCopy
from planaria_coordinator.domain.placement.replicas import (
    MAX_SOURCES,
    assign_engines,
    choose_sources,
    late_engines,
    layers_without_replica,
    missing_layers,
    placement_of,
    target_steps,
    witness_record,
)
from unit.coordinator.fake_planner import make_plan
from unit.coordinator.job_documents import job_document

NODE = NodeFacts(
    node_id="a",
    num_accelerators=1,
    accelerator_kind="cpu",
    accelerator_memory_bytes=1 << 30,
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


# -- liveness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silence", "session_open", "holds_engines", "peer_lost", "is_lost"),
    [
        (2.9, True, True, False, False),
        (3.1, True, True, False, True),  # a cut network, or a stopped machine
        (3.1, True, False, False, True),
        (3.1, False, False, False, True),
        (3.1, False, True, False, False),  # perhaps only the agent has crashed
        (10.1, False, True, False, True),  # its engines have stopped by now
        (0.1, False, True, True, True),  # the machine is gone
        (0.1, True, True, True, False),  # the agent will say what happened
    ],
)
def test_a_node_is_lost_when_its_deadline_is_over(
    silence: float, session_open: bool, holds_engines: bool, peer_lost: bool, is_lost: bool
) -> None:
    seen = Liveness(
        last_seen_seconds=100.0,
        session_open=session_open,
        session_ended=not session_open,
        holds_engines=holds_engines,
        peer_lost=peer_lost,
    )
    why = why_node_lost(100.0 + silence, seen, node_deadline_seconds=3.0, agent_lease_seconds=10.0)
    assert (why is not None) == is_lost


@pytest.mark.parametrize(
    ("silence", "holds_engines", "peer_lost", "is_lost"),
    [
        (9.9, True, False, False),  # its agent tries again, and its engines go on
        (10.1, True, False, True),  # they have stopped by now
        (2.9, True, True, False),  # an engine that died alone does not make its node lost
        (3.1, True, True, True),
        (3.1, False, False, True),
    ],
)
def test_after_our_own_restart_a_node_has_time_to_connect(
    silence: float, holds_engines: bool, peer_lost: bool, is_lost: bool
) -> None:
    seen = Liveness(
        last_seen_seconds=0.0,
        session_open=False,
        session_ended=False,
        holds_engines=holds_engines,
        peer_lost=peer_lost,
    )
    why = why_node_lost(silence, seen, node_deadline_seconds=3.0, agent_lease_seconds=10.0)
    assert (why is not None) == is_lost


def test_a_job_advances_while_any_engine_does() -> None:
    first = observe_progress(1.0, None, {"a": 1, "b": 1})
    second = observe_progress(2.0, first, {"a": 1, "b": 2})
    third = observe_progress(3.0, second, {"a": 1, "b": 2})
    assert (first.since_seconds, second.since_seconds, third.since_seconds) == (1.0, 2.0, 2.0)


# -- ledger ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Activity),
            st.floats(-50, 100),
            st.sampled_from(Activity),
            st.floats(0, 9),
        )
    )
)
def test_every_second_has_exactly_one_name(
    switches: list[tuple[Activity, float, Activity, float]],
) -> None:
    """Whatever clocks engines have, the names add up to the wall clock [9]."""
    time_account = TimeAccount(current=Activity.WAITING, since=NOON)
    for activity, offset, other, seconds in switches:
        time_account = time_account.switch(activity, NOON + timedelta(seconds=offset))
        time_account = time_account.move(activity, other, seconds)
    end = max(time_account.since, NOON + timedelta(seconds=100))
    time_account = time_account.close(end)
    totals = time_account.totals(end + timedelta(days=1))
    assert sum(totals.values()) == pytest.approx((end - NOON).total_seconds(), abs=1e-6)
    assert all(seconds >= -1e-9 for seconds in totals.values())


def test_goodput_counts_from_the_first_step() -> None:
    time_account = TimeAccount(current=Activity.WAITING, since=NOON)
    start = NOON + timedelta(seconds=30)
    time_account = time_account.switch(Activity.PRODUCTIVE, start)
    assert time_account.goodput(start + timedelta(seconds=10), None) is None
    time_account = time_account.switch(Activity.COPY, start + timedelta(seconds=8))
    assert time_account.goodput(start + timedelta(seconds=10), start) == pytest.approx(0.8)


# -- replicas ----------------------------------------------------------------------------------


def report(steps: int, layers: dict[int, int], *, generation: int | None = None) -> FenceReport:
    last = None
    if generation is not None:
        last = CommitRecord(
            step=steps - 1, generation=generation, gradient_norm=1.0, loss=1.0, num_tokens=1
        )
    return FenceReport(
        committed_steps=steps,
        last_commit=last,
        layers=tuple(HeldLayer(layer=k, version=v) for k, v in layers.items()),
        finished_microbatches=(),
        step_compute_seconds=0.0,
        fence_time=NOON,
        park_time=NOON,
    )


def engine(node_id: str) -> Engine:
    return Engine(
        id=node_id, node_id=node_id, accelerator=0, prepared=True, data_address=f"data:{node_id}"
    )


def placement(*node_ids: str) -> Placement:
    plan = make_plan(list(node_ids), 1, 6, 8)
    stage_engines = assign_engines(plan, [engine(node_id) for node_id in node_ids])
    return Placement(generation=3, plan=plan, stage_engines=stage_engines, reason="")


def test_everyone_is_brought_to_the_newest_version_reported() -> None:
    """An engine that was parked before has no sums: it is left as it is."""
    reports = {"a": report(5, {}, generation=3), "b": report(4, {}), "spare": report(4, {})}
    assert target_steps(reports) == 5
    record = witness_record(reports, 5)
    assert record is not None
    assert record.step == 4
    newest, older = placement("a", "b"), replace(placement("spare"), generation=2)
    assert placement_of(record, (older, newest)) == newest
    assert placement_of(record, (older,)) is None
    assert late_engines(reports, 5, newest) == ("b",)
    assert late_engines(reports, 5, None) == ()


def test_a_witness_has_the_record_of_the_step_before_the_newest_version() -> None:
    """An engine at T* whose newest record is of an earlier step is no witness."""
    older, newest = report(4, {}, generation=3).last_commit, report(5, {}, generation=3).last_commit
    assert older is not None
    assert older.step == 3
    stale = replace(report(5, {}), last_commit=older)
    assert witness_record({"a": stale}, 5) is None
    assert witness_record({"a": stale, "b": report(5, {}, generation=3)}, 5) == newest


def test_layers_of_an_older_version_are_no_replicas() -> None:
    assert layers_without_replica({"a": (0, 1), "b": (1, 2)}, 4) == (3,)


def test_sources_follow_the_planner_and_spread_the_load() -> None:
    engines = {name: engine(name) for name in "abcd"}
    holdings = {"a": (0, 1, 2), "b": (0, 1, 2), "d": ()}
    proposed = [LayerCopy(layer=0, source_node_id="b", destination_node_id="d")]
    chosen = choose_sources({"d": (0, 1, 2, 5)}, holdings, engines, proposed)["d"]
    assert [(source.layer, source.addresses[0]) for source in chosen] == [
        (0, "data:b"),
        (1, "data:a"),
        (2, "data:a"),
    ]
    again = choose_sources({"d": (0,)}, holdings, engines, proposed, skip=1)["d"]
    assert again[0].addresses == ("data:a", "data:b")


def test_an_engine_of_the_same_machine_is_the_first_source() -> None:
    """It replaces a crashed one, while others continue."""
    engines = {name: engine(name) for name in "abc"}
    engines["a2"] = replace(engine("a"), id="a2", accelerator=1, data_address="data:a2")
    holdings = {"b": (0,), "c": (0,), "a2": (0,)}
    proposed = [LayerCopy(layer=0, source_node_id="c", destination_node_id="a")]
    (source,) = choose_sources({"a": (0,)}, holdings, engines, proposed)["a"]
    assert source.addresses == ("data:a2", "data:c", "data:b")


def test_no_more_sources_are_named_than_are_of_use() -> None:
    engines = {f"n{i}": engine(f"n{i}") for i in range(9)}
    holdings = {f"n{i}": (0,) for i in range(8)}
    chosen = choose_sources({"n8": (0,)}, holdings, engines)["n8"]
    assert len(chosen[0].addresses) == MAX_SOURCES


def test_with_tied_embeddings_the_host_of_the_head_needs_the_embedding_too() -> None:
    tied = requirements_of(
        JobSpec.model_validate(job_document(model={"tie_word_embeddings": True})), "secret"
    )
    plan = make_plan(["a", "b"], 1, 6, 8)
    stage_engines = assign_engines(plan, [engine("a"), engine("b")])
    missing = missing_layers(plan, stage_engines, {"a": (0, 1, 2), "b": (3, 4, 5)}, tied)
    assert missing == {"b": (0,)}


# -- plans -------------------------------------------------------------------------------------


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


# -- profiles ----------------------------------------------------------------------------------


def test_measurements_replace_estimates() -> None:
    """The median of the engines counts."""
    layers = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    engines = [
        Engine(
            id=f"e{k}",
            node_id=f"n{k}",
            accelerator=0,
            measured_layers=tuple(
                MeasuredLayer(layer=layer, forward_seconds=k * f, backward_seconds=2 * k * f)
                for layer, f in enumerate((0.1, 0.2, 0.2, 0.2, 0.2, 0.3))
            ),
        )
        for k in (1, 2, 3)
    ]
    measured = measured_layers(layers, engines)
    assert [layer.forward_seconds for layer in measured] == pytest.approx(
        [0.2, 0.4, 0.4, 0.4, 0.4, 0.6]
    )
    assert measured[1].state_bytes == layers[1].state_bytes


def test_as_long_as_a_layer_is_not_measured_all_times_stay_estimates() -> None:
    layers = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    only_blocks = Engine(
        id="e",
        node_id="n",
        accelerator=0,
        measured_layers=(MeasuredLayer(layer=1, forward_seconds=9.0, backward_seconds=9.0),),
    )
    assert measured_layers(layers, [only_blocks]) == layers


def test_a_model_for_large_machines_is_not_refused_for_being_slow_on_small_ones() -> None:
    """The planner takes no microbatch of hours; before measuring only proportions matter."""
    document = job_document(
        model={"hidden_size": 16_384, "num_layers": 120, "num_heads": 128},
        data={"sequence_length": 2048},
    )
    layers = requirements_of(JobSpec.model_validate(document), "secret").layers
    seconds = [layer.forward_seconds + layer.backward_seconds for layer in layers]
    assert 1 < sum(seconds) < 100
    assert seconds[1] == seconds[2] > seconds[0]


def test_a_model_for_fast_links_is_not_refused_for_being_slow_on_slow_ones() -> None:
    """Six trillion parameters would take hours over the links of a model of millions."""
    small = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    document = job_document(model={"hidden_size": 49_152, "num_layers": 200, "num_heads": 128})
    huge = requirements_of(JobSpec.model_validate(document), "secret").layers
    bandwidths = []
    for layers in (small, huge):
        hardware = model_profile(layers, 1, [NODE]).hardware
        moved_bytes = sum(layer.parameter_bytes + layer.output_bytes for layer in layers)
        assert moved_bytes / hardware.inter_node_bytes_per_second <= 60 * (1 + 1e-9)
        assert hardware.intra_node_bytes_per_second > hardware.inter_node_bytes_per_second
        bandwidths.append(hardware.inter_node_bytes_per_second)
    assert bandwidths[0] == 1e9 < bandwidths[1]


def test_the_kind_of_node_that_holds_most_comes_first() -> None:
    """In nodes of the first kind the planner counts how many hold the model."""
    layers = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    large = replace(NODE, node_id="b", accelerator_memory_bytes=1 << 35)
    kinds = model_profile(layers, 1, [NODE, large]).hardware.node_kinds
    assert [kind.accelerator_memory_bytes for kind in kinds] == [1 << 35, 1 << 30]


def test_a_model_that_cannot_be_built_is_refused_naming_the_field() -> None:
    document = job_document(model={"hidden_size": 36, "num_heads": 12, "head_dim": 3})
    with pytest.raises(PlanariaError) as caught:
        requirements_of(JobSpec.model_validate(document), "secret")
    assert caught.value.reason is ErrorReason.INVALID_JOB
    assert caught.value.metadata["field"] == "model.head_dim"
