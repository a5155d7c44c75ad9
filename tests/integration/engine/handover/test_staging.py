"""Whoever cannot stage a place, or dies or stops in it, holds up nobody."""

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
    held,
)
from integration.engine.scenarios import finish, kept
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import DigestLayers, Switch
from support.engines.cluster import EngineCluster
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import TrainingJob
from support.engines.zygote import Zygote
from unit.guards.engines import keep_no_sum_for_followers

pytestmark = pytest.mark.integration


@pytest.mark.slow
@pytest.mark.parametrize("lack", ["other stages", "no pipeline", "layers"])
def test_an_assignment_that_cannot_be_staged_is_refused(
    cluster: EngineCluster, go: Path, lack: str
) -> None:
    begin(cluster, go, joining="e")
    after = {
        "other stages": [Pipeline([("a", 4), ("b", 3)], range(6), keeps=True)],
        "no pipeline": [Pipeline([("e", 7)], range(6), keeps=True)],
        "layers": [Pipeline([("a", 7)], range(6))],
    }[lack]
    handover = Handover(cluster, BOTH, after)
    name = after[0].stages[0][0]
    command = handover.stage_command(name)
    if lack == "layers":
        del command.layers[-1]
    result = cluster.ask(name, handover.generation, stage_plan=command)
    assert result.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE
    assert result.failure.metadata["field"] == ("layers" if lack == "layers" else "keeps_step")
    go.touch()
    cluster.wait_until_finished(*"abcd")


def test_a_joiner_that_falls_behind_restarts_its_layers(
    job: TrainingJob, expected: ReferenceResult, zygote: Zygote, tmp_path: Path
) -> None:
    """Its sources keep no sum for it: whatever is committed, they send the layer as it is then."""
    go, serve = tmp_path / "go", tmp_path / "serve"
    slow = {"at": "serve_follow", "action": "hold", "until": str(serve)}
    with EngineCluster(
        tmp_path / "engines", job.files, zygote, without=keep_no_sum_for_followers
    ) as cluster:
        begin(cluster, go, joining="e", failpoints={"a": [slow], "b": [slow], "e": []})
        handover = Handover(cluster, BOTH, WITH_E)
        handover.begin_staging()
        cluster.wait_for_step("d", STEP - 1)
        serve.touch()
        handover.wait_until_staged()
        handover.switch_after(STEP, go)
        handover.wait_until_switched()
        finish(cluster, expected, WITH_E)
        assert "follower_fell_behind" in cluster.engines["a"].log()


def test_a_joiner_that_dies_in_staging_costs_nothing(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    stage = tmp_path / "stage"
    begin(
        cluster,
        go,
        joining="e",
        failpoints={
            "a": [{"at": "stage", "action": "hold", "until": str(stage)}],
            "e": [{"at": "follow", "action": "kill"}],
        },
    )
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    cluster.wait_until_dead("e")
    again = Handover(cluster, BOTH, WITHOUT_D)
    again.begin_staging()
    cluster.ask("a", again.generation, digest_layers=DigestLayers())  # it knows the newer plan
    stage.touch()
    reason = handover.staging_result("a").failure.reason
    assert reason == ErrorReason.ERROR_REASON_STALE_GENERATION
    again.wait_until_staged()
    again.switch_after(STEP, go)
    again.wait_until_switched()
    finish(cluster, expected, WITHOUT_D)
    assert not handover.has_parked(*"abc")


@pytest.mark.slow
def test_a_source_that_dies_while_it_is_followed_is_a_loss_like_any(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """What was staged is dropped; the healthy pipeline finishes the step."""
    fatal = {"at": "serve_follow", "action": "kill", "step": STEP + 1}
    begin(cluster, go, joining="e", failpoints={"c": [fatal], "e": []})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.prefer("c")
    handover.stage()
    go.touch()
    cluster.wait_until_dead("c")
    reports = cluster.fence(["c"])
    held_layers = cluster.roll_forward(reports)
    assert not held_layers["e"]
    after = [Pipeline(PAIR, range(6))]
    cluster.recover(after)
    finish(cluster, expected, after)


def test_training_gets_the_memory_that_the_next_plan_has_taken(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """c runs out of it in a pass: it lives, loses no layer, and the change is made parked.

    Guard: an engine without memory gives up what is staged, and is not at fault.
    """
    pass_of_c = {"at": "forward", "action": "no_memory", "step": STEP, "microbatch": 4}
    begin(cluster, go, joining="e", failpoints={"c": [held(go), pass_of_c]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_after(STEP, go)
    fault = cluster.wait_for_fault("c")
    assert fault.failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    assert "out of memory while the next plan was staged" in fault.failure.message
    reports = cluster.quiesce(["a", "b", "c", "d", "e"])
    assert {r.committed_steps for n, r in reports.items() if n != "e"} == {STEP}
    assert [layer.layer for layer in reports["c"].layers] == [0, 1, 2, 3, 4]
    parked = [Pipeline(p.stages, p.microbatches) for p in WITH_E]
    cluster.copy_missing(parked, cluster.roll_forward(reports))
    cluster.place(parked)
    finish(cluster, expected, parked)


@pytest.mark.parametrize("action", ["no_memory", pytest.param("raise", marks=pytest.mark.slow)])
def test_an_engine_that_cannot_stage_says_so_and_trains_on(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path, action: str
) -> None:
    """Neither one that fails, nor one that is not ready, is switched."""
    stage = tmp_path / "stage"
    begin(
        cluster,
        go,
        joining="e",
        failpoints={
            "a": [{"at": "stage", "action": action}],
            "b": [{"at": "stage", "action": "hold", "until": str(stage)}],
        },
    )
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    failed = handover.staging_result("a").failure
    assert failed.reason == ErrorReason.ERROR_REASON_ENGINE_FAILED
    for name in "ab":
        early = cluster.ask(name, handover.generation, switch=Switch())
        assert early.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE
    stage.touch()
    go.touch()
    finish(cluster, expected, BOTH)
    assert not handover.has_parked(*"abcd")


@pytest.mark.slow
def test_an_engine_that_dies_in_staging_is_a_loss_like_any(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """The others drop what they have staged, and finish the step."""
    begin(cluster, go, joining="e", failpoints={"b": [{"at": "stage", "action": "kill"}]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    cluster.wait_until_dead("b")
    reports = cluster.fence(["b"])
    assert kept(reports) == {"a": [], "c": [3, 4, 5], "d": [3, 4, 5], "e": []}
    for name in "acde":
        reason = handover.staging_result(name).failure.reason
        assert reason == ErrorReason.ERROR_REASON_STALE_GENERATION
    after = [Pipeline(OTHER_PAIR, range(3)), Pipeline([("e", 7)], range(3, 6))]
    go.touch()
    cluster.recover(after)
    finish(cluster, expected, after)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["follow", "switch"])
def test_a_stopped_joiner_does_not_hold_up_the_others(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, place: str
) -> None:
    """In staging it delays nobody; after the commit it is lost like any engine."""
    begin(cluster, go, joining="e", failpoints={"e": [{"at": place, "action": "stop"}]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    if place == "follow":
        go.touch()
        finish(cluster, expected, BOTH)
        assert not handover.has_parked(*"abcd")
        return
    handover.wait_until_staged()
    handover.switch_after(STEP, go)
    for name in "abcd":
        assert handover.switching_result(name).HasField("activated")
    reports = cluster.fence(["e"])
    assert {r.applied_generation for r in reports.values()} == {handover.generation}
    cluster.engines["e"].kill()
    cluster.wait_until_dead("e")
    cluster.recover(BOTH)
    finish(cluster, expected, BOTH)
