"""Which layers survive, in which version, and from where they are copied."""

from dataclasses import replace
from datetime import UTC, datetime

from planaria.job import JobSpec
from planaria_coordinator.application.jobs.submission import requirements_of
from planaria_coordinator.domain.engines.directive import CommitRecord
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import FenceReport, HeldLayer
from planaria_coordinator.domain.placement.placement import Placement
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
from unit.coordinator.simulation.fake_planner import make_plan
from unit.coordinator.simulation.job_documents import job_document

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


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
