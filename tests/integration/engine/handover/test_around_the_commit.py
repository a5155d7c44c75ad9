"""A failure or a fence around the commit leaves one plan or the other, and promises of it alone."""

from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.handover.staged import (
    BOTH,
    OTHER_PAIR,
    PAIR,
    STEP,
    WITH_E,
    WITHOUT_D,
    begin,
    fence_while_held,
    hand_over,
)
from integration.engine.scenarios import finish, kept
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import DigestLayers
from support.engines.cluster import EngineCluster
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("place", "victim"),
    [
        ("after_exchange", "b"),
        *(
            pytest.param(place, victim, marks=pytest.mark.slow)
            for place in ("before_exchange", "after_exchange", "switch")
            for victim in ("b", "d")
            if (place, victim) != ("after_exchange", "b")
        ),
    ],
)
def test_an_engine_that_dies_around_the_commit_leaves_one_plan_or_the_other(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, place: str, victim: str
) -> None:
    """An engine that passed it is a witness of the next plan; the others roll forward and park."""
    fatal = {"at": place, "action": "kill", "step": STEP}
    begin(cluster, go, joining="e", failpoints={victim: [fatal]})
    handover = hand_over(cluster, go, WITH_E)
    cluster.wait_until_dead(victim)
    reports = cluster.fence([victim])
    if place == "before_exchange":
        assert {r.committed_steps for n, r in reports.items() if n != "e"} == {STEP}
        assert not reports["e"].layers
    for report in reports.values():
        if report.committed_steps == STEP + 1:
            assert report.last_commit.next_generation == handover.generation
    cluster.roll_forward(reports)
    survivors = [n for n in "abcde" if n != victim]
    plan = [Pipeline([("e", 7)], range(3)), Pipeline([("c", 7)], range(3, 6))]
    if place == "before_exchange":
        plan = [Pipeline([("a", 7)], range(3)), Pipeline([("c", 7)], range(3, 6))]
    assert set(reports) == set(survivors)
    cluster.recover(plan)
    finish(cluster, expected, plan)


def test_a_joiner_that_dies_after_the_commit_leaves_retained_work_of_the_next_plan(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """The unchanged pipelines are whole, in the new generation, with its microbatches."""
    fatal = {"at": "switch", "action": "kill"}
    begin(cluster, go, joining="e", failpoints={"e": [fatal]})
    handover = hand_over(cluster, go, WITH_E)
    for name in "abcd":
        assert handover.switching_result(name).HasField("activated")
    cluster.wait_until_dead("e")
    reports = cluster.fence(["e"])
    assert kept(reports) == {"a": [0, 1], "b": [0, 1], "c": [2, 3], "d": [2, 3]}
    assert {r.applied_generation for r in reports.values()} == {handover.generation}
    assert {r.committed_steps for r in reports.values()} == {STEP + 1}
    cluster.committed_steps = STEP + 1
    keeping = [
        Pipeline(PAIR, [0, 1, 2], in_flight=[0, 1, 4]),
        Pipeline(OTHER_PAIR, [3, 4, 5], in_flight=[2, 3, 5]),
    ]
    cluster.place(keeping)
    finish(cluster, expected, keeping)


def test_a_fence_between_the_commit_and_the_switch_finds_no_retained_work(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """c is about to take another place; its report is that of the commit, and it stays without."""
    place = tmp_path / "place"
    waiting = {"at": "switch", "action": "hold", "until": str(place)}
    begin(cluster, go, failpoints={"c": [waiting]})
    handover = hand_over(cluster, go, WITHOUT_D)
    for name in ("a", "b", "d"):
        handover.switching_result(name)
    reports = fence_while_held(cluster, place, ("a", "b", "c", "d"))
    assert {report.committed_steps for report in reports.values()} == {STEP + 1}
    assert kept(reports) == {"a": [0, 1, 2], "b": [0, 1, 2], "c": [], "d": []}
    assert reports["c"].applied_generation == 0
    assert [layer.layer for layer in reports["c"].layers] == list(range(5))
    assert handover.switching_result("c").HasField("failure")
    plan = [Pipeline(PAIR, range(3)), Pipeline(OTHER_PAIR, range(3, 6))]
    cluster.recover(plan)
    finish(cluster, expected, plan)


def test_a_straggler_rolls_forward_and_parks(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """b has passed the exchange and told a nothing yet: a promised for the plan before."""
    decision = tmp_path / "decision"
    waiting = {"at": "after_exchange", "action": "hold", "step": STEP, "until": str(decision)}
    begin(cluster, go, joining="e", failpoints={"b": [waiting]})
    handover = hand_over(cluster, go, WITH_E)
    handover.switching_result("d")
    reports = fence_while_held(cluster, decision, ("a", "b", "c", "d", "e"))
    assert reports["a"].committed_steps == STEP
    assert reports["a"].applied_generation < handover.generation
    assert reports["d"].committed_steps == STEP + 1
    cluster.roll_forward(reports)
    reports = cluster.fence()
    assert kept(reports)["a"] == []
    assert reports["a"].applied_generation == 0
    assert {reports[name].committed_steps for name in "abcd"} == {STEP + 1}
    plan = [Pipeline([("a", 7)], range(3)), Pipeline(OTHER_PAIR, range(3, 6))]
    cluster.recover(plan)
    finish(cluster, expected, plan)


def test_a_fence_during_the_update_finds_no_retained_work_of_the_next_plan(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """b has passed the commit, and is fenced before it could go on behind it."""
    update = tmp_path / "update"
    waiting = {"at": "before_update", "action": "hold", "step": STEP, "until": str(update)}
    begin(cluster, go, joining="e", failpoints={"b": [waiting], "e": []})
    handover = hand_over(cluster, go, WITH_E)
    for name in "acd":
        assert handover.switching_result(name).HasField("activated")
    reports = fence_while_held(cluster, update, ("a", "b", "c", "d"))
    assert kept(reports) == {"a": [0, 1], "b": [], "c": [2, 3], "d": [2, 3]}
    assert reports["b"].last_commit.next_generation == handover.generation
    assert reports["b"].applied_generation == 0
    cluster.recover(BOTH)
    finish(cluster, expected, BOTH)


def test_an_engine_that_votes_does_not_switch_on_what_a_followed_layer_says(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """c hears of the commit from b, whose layers it follows; in its own pipeline d dies before c
    has the decision. Its own layers lack the step."""
    never = tmp_path / "never"
    silent = {"at": "after_exchange", "action": "hold", "step": STEP, "until": str(never)}
    begin(cluster, go, failpoints={"d": [silent]})
    handover = Handover(cluster, BOTH, WITHOUT_D)
    handover.prefer("b")
    handover.stage()
    handover.switch_after(STEP, go)
    for name in "ab":
        assert handover.switching_result(name).HasField("activated")
    cluster.engines["d"].kill()
    cluster.wait_until_dead("d")
    cluster.wait_for_fault("c")
    cluster.ask("c", digest_layers=DigestLayers())  # time to do what it must not
    reports = cluster.fence(["d"])
    assert reports["c"].committed_steps == STEP
    assert reports["c"].applied_generation == 0
    cluster.roll_forward(reports)
    plan = [Pipeline(PAIR, range(3)), Pipeline([("c", 7)], range(3, 6))]
    cluster.recover(plan)
    finish(cluster, expected, plan)


@pytest.mark.slow
def test_layers_that_do_not_arrive_after_the_commit_are_a_fault(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """c has the commit, and its source does not send it the sums: it does not wait for ever."""
    never = tmp_path / "never"
    silent = {"at": "serve_follow", "action": "hold", "step": STEP + 1, "until": str(never)}
    begin(cluster, go, failpoints={"b": [silent]})
    handover = Handover(cluster, BOTH, WITHOUT_D, rebuild_seconds=1)
    handover.prefer("b")
    handover.stage()
    handover.switch_after(STEP, go)
    fault = cluster.wait_for_fault("c")
    assert fault.failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    assert fault.generation == handover.generation
    assert fault.failure.metadata["layers"] == "5, 6"
    refused = handover.switching_result("c").failure
    assert refused.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    cluster.recover(BOTH)
    finish(cluster, expected, BOTH)
