"""The step in flight is finished by whoever is whole: nobody else stops, nothing is done twice.

Two pipelines that are cut differently; b of the first one fails at a named place of step 2. The
engines of the second are armed to die if they compute any microbatch of that step a second time.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import BEFORE, FAILED_STEP, finish, kept
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import Quiesce
from planaria.api.worker.v1.report_pb2 import FenceReport
from support.engines.cluster import EngineCluster
from support.engines.small_plans import Pipeline

pytestmark = pytest.mark.integration

KEPT = [3, 4, 5]
AFTER = [Pipeline([("c", 5), ("d", 2)], [0, 1, 2, 3, 4, 5])]
FINISHING = [Pipeline([("c", 5), ("d", 2)], [0, 1, 2, 3, 4, 5], in_flight=[*KEPT, 0, 1, 2])]
LAYERS_OF_A = range(3)


@pytest.fixture(autouse=True)
def _disarm(cluster: EngineCluster) -> Iterator[None]:
    """What an engine was armed with must not meet the next test."""
    yield
    for engine in cluster.engines.values():
        engine.close()


def once_only(microbatches: Sequence[int] = range(6)) -> list[dict[str, object]]:
    """Deadly for whoever computes one of these microbatches of the failed step again."""
    return [
        {"at": "forward", "action": "kill", "step": FAILED_STEP, "microbatch": m, "skip": 1}
        for m in microbatches
    ]


def held(path: Path, microbatch: int) -> dict[str, object]:
    """Keeps an engine from computing until the test lets it go."""
    return {
        "at": "forward",
        "action": "hold",
        "step": FAILED_STEP,
        "microbatch": microbatch,
        "until": str(path),
    }


def lose_b(
    cluster: EngineCluster,
    failpoint: Mapping[str, object] = MappingProxyType({"at": "forward", "microbatch": 1}),
    **armed: Sequence[Mapping[str, object]],
) -> dict[str, FenceReport]:
    """b dies in the step that is to fail; the others, armed as named, are fenced."""
    fatal = {"action": "kill", "step": FAILED_STEP, **failpoint}
    cluster.prepare(*"abcd", failpoints={"b": [fatal], **armed})
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")
    cluster.committed_steps = FAILED_STEP
    return cluster.fence(["b"])


@pytest.mark.parametrize(
    "failpoint",
    [
        {"at": "forward", "microbatch": 1},
        {"at": "backward", "microbatch": 0},
        {"at": "wait_peer", "microbatch": 2},
        {"at": "reduce"},
        {"at": "before_exchange"},
    ],
    ids=lambda failpoint: failpoint["at"],
)
def test_a_healthy_pipeline_finishes_the_step_of_a_broken_one(
    cluster: EngineCluster, expected: ReferenceResult, failpoint: dict[str, object]
) -> None:
    reports = lose_b(cluster, failpoint, c=once_only(), d=once_only())
    assert kept(reports) == {"a": [], "c": KEPT, "d": KEPT}
    assert reports["a"].HasField("park_time")
    assert {report.committed_steps for report in reports.values()} == {FAILED_STEP}
    assert {reports[name].applied_generation for name in "cd"} == {cluster.generation - 1}
    assert all(reports[name].microbatch_seconds > 0 for name in "cd")
    cluster.place(FINISHING, followers={"a": LAYERS_OF_A})
    finish(cluster, expected, AFTER, followers={"a": LAYERS_OF_A})


def test_a_group_without_a_lost_member_continues(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """One of its members is armed to die if it rebuilds any group.

    Guard: who is in a broken pipeline sets its idle groups aside, too.
    """
    go = tmp_path / "go"
    once_made = {"at": "rebuild", "action": "kill", "skip": 1}
    reports = lose_b(cluster, c=[held(go, 4), once_made])
    go.touch()
    assert {name: [g.size for g in report.idle_groups] for name, report in reports.items()} == {
        "a": [2],
        "c": [2],
        "d": [],
    }
    assert len(cluster.kept_groups) == 1
    cluster.place(FINISHING, followers={"a": LAYERS_OF_A})
    finish(cluster, expected, AFTER, followers={"a": LAYERS_OF_A})


def test_a_kept_group_lost_before_the_plan_arrives_costs_no_microbatch(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """A second loss, between the reports and the Activate. Guard: it is accepted all the same."""
    go = tmp_path / "go"
    lose_b(cluster, c=[held(go, 4), *once_only([3, 5])], d=once_only())
    assert len(cluster.kept_groups) == 1
    cluster.engines["a"].kill()
    cluster.wait_for(
        "loss of a seen by c",
        lambda: [
            e for e in cluster.engines["c"].events if e.link_failed.peer_engine_id.count("/a/")
        ],
    )
    command = cluster.activate_command(FINISHING, followers={"a": LAYERS_OF_A})
    directives = {name: cluster.direct(name, activate=command) for name in "cd"}
    result = cluster.wait_for_result("c", directives["c"])
    # An engine tells of a loss before it ends its own groups: the Activate may come in between.
    assert (
        result.HasField("activated")
        or result.failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    ), result
    reports = cluster.fence(["a"])
    go.touch()
    in_flight = FINISHING[0].in_flight
    assert kept(reports) == {"c": in_flight, "d": in_flight}
    cluster.place(FINISHING)
    finish(cluster, expected, AFTER)


def test_broken_pipelines_report_and_build_groups_during_their_last_pass(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """However long the pass of a microbatch takes, nobody waits for it; fenced again or not.

    Guards: who was halted reports and builds groups within a pass, too; the groups are not ended
    when the pass is.
    """
    go = tmp_path / "go"
    fatal = {"at": "backward", "action": "kill", "step": FAILED_STEP, "microbatch": 0}
    cluster.prepare("a", "b", "c", "d", failpoints={"a": [held(go, 1)], "b": [fatal]})
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")
    cluster.committed_steps = FAILED_STEP
    for lost in (["b"], []):
        reports = cluster.fence(lost)
        assert [name for name in reports if reports[name].HasField("park_time")] == ["a"]
        command = cluster.activate_command(FINISHING, followers={"a": LAYERS_OF_A})
        directives = {name: cluster.direct(name, activate=command) for name in "acd"}
        for name in "cd":
            assert cluster.wait_for_result(name, directives[name]).HasField("activated")
    go.touch()
    assert cluster.wait_for_result("a", directives["a"]).HasField("activated")
    finish(cluster, expected, AFTER, followers={"a": LAYERS_OF_A})


def test_a_healthy_pipeline_computes_between_the_fence_and_the_plan(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """However often it is fenced meanwhile."""
    go = tmp_path / "go"
    reports = lose_b(cluster, c=[held(go, 4), *once_only([3, 5])], d=once_only())
    assert kept(reports) == {"a": [], "c": KEPT, "d": KEPT}
    assert len(reports["c"].finished_microbatches) < len(KEPT)
    go.touch()
    reports = cluster.fence_until_computed("c", "d")
    assert kept(reports) == {"a": [], "c": KEPT, "d": KEPT}
    cluster.place(FINISHING)
    finish(cluster, expected, AFTER)


def test_a_second_fence_overtakes_the_plan_of_the_first(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """Both engines had accepted it, so both make its passes and its attempt, in vain."""
    go = tmp_path / "go"
    lose_b(cluster, c=[held(go, 4), *once_only([0, 1, 2, 3, 5])], d=once_only())
    cluster.place(FINISHING)  # answered while c is held: the groups are built meanwhile
    reports = cluster.fence()
    everything = [*KEPT, 0, 1, 2]
    assert kept(reports) == {"c": everything, "d": everything}
    assert {reports[name].applied_generation for name in "cd"} == {cluster.generation - 1}
    go.touch()
    cluster.place([Pipeline(AFTER[0].stages, range(6), in_flight=everything)])
    finish(cluster, expected, AFTER)


def test_a_pipeline_with_more_microbatches_in_time_does_not_drain(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """d comes to the first of the lost microbatches while c is before its last backward pass.

    It fails there, and nothing of what was begun is in the step.
    """
    go, end = tmp_path / "go", tmp_path / "end"
    failing = {"at": "forward", "action": "raise", "step": FAILED_STEP, "microbatch": 0}
    last = {"at": "backward", "action": "hold", "step": FAILED_STEP, "microbatch": KEPT[-1]}
    lose_b(cluster, c=[held(go, 4), {**last, "until": str(end)}], d=[failing])
    cluster.place(FINISHING)
    go.touch()
    assert "failpoint at forward" in cluster.wait_for_fault("d").failure.message
    end.touch()
    reports = cluster.recover([Pipeline(AFTER[0].stages, range(6))])
    assert kept(reports) == {"c": [], "d": []}
    finish(cluster, expected, AFTER)


def test_a_follower_keeps_up_and_can_be_assigned_again(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    lose_b(cluster, {"at": "backward", "microbatch": 1}, c=once_only())
    cluster.place(FINISHING, followers={"a": LAYERS_OF_A})
    reports = cluster.quiesce(mode=Quiesce.MODE_AT_COMMIT)
    steps = {report.committed_steps for report in reports.values()}
    assert len(steps) == 1
    held_layers = cluster.roll_forward(reports)
    assert held_layers["a"] == dict.fromkeys(LAYERS_OF_A, cluster.committed_steps)
    regrown = [Pipeline([("a", 7)], [0, 1]), Pipeline([("c", 5), ("d", 2)], [2, 3, 4, 5])]
    copied = cluster.copy_missing(regrown, held_layers)
    assert copied.keys() == {"a"}
    cluster.activate(regrown)
    finish(cluster, expected, regrown)


def test_a_healthy_pipeline_that_missed_a_commit_continues_after_it(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """a has passed the exchange of step 2 and told b nothing yet; c and d begin step 3 at once.

    b is told by the coordinator, and begins step 3 as well: its pipeline is whole again.
    """
    go = tmp_path / "go"
    plan = [Pipeline([("b", 3), ("a", 4)], [0, 1, 2]), BEFORE[1]]
    waiting = {"at": "after_exchange", "action": "hold", "step": FAILED_STEP, "until": str(go)}
    cluster.prepare("a", "b", "c", "d", failpoints={"a": [waiting]})
    cluster.train(plan)
    cluster.wait_for_step("d", FAILED_STEP)
    # b is fenced before it hears of the commit; a answers when its update is done.
    cluster.generation += 1
    fence = Quiesce(mode=Quiesce.MODE_FENCE)
    asked = {name: cluster.direct(name, quiesce=fence) for name in "abcd"}
    cluster.wait_for_result("b", asked["b"])
    go.touch()
    reports = {n: cluster.wait_for_result(n, asked[n]).fence_report for n in "abcd"}
    steps = {name: report.committed_steps for name, report in reports.items()}
    assert (steps["b"], steps["d"]) == (FAILED_STEP, FAILED_STEP + 1)
    # As a rule a had passed, and only b is told of it; else both are.
    cluster.roll_forward(reports)
    reports = cluster.fence()
    assert kept(reports) == {"a": [0, 1, 2], "b": [0, 1, 2], "c": KEPT, "d": KEPT}
    assert {report.committed_steps for report in reports.values()} == {FAILED_STEP + 1}
    keeping = [Pipeline(p.stages, p.microbatches, in_flight=p.microbatches) for p in plan]
    cluster.place(keeping)
    finish(cluster, expected, plan)


def test_a_follower_reports_a_step_when_its_reporters_are_lost(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """a dies, and b follows what it has. d has passed with b and c, and dies before it says so."""
    fatal = {"at": "backward", "action": "kill", "step": FAILED_STEP}
    waiting = {"at": "before_update", "action": "hold", "step": FAILED_STEP}
    cluster.prepare(
        "a",
        "b",
        "c",
        "d",
        failpoints={"a": [fatal], "d": [waiting | {"until": str(tmp_path / "never")}]},
    )
    cluster.train(BEFORE)
    cluster.wait_until_dead("a")
    cluster.fence(["a"])
    cluster.committed_steps = FAILED_STEP
    cluster.place(FINISHING, followers={"b": range(3, 7)})
    cluster.wait_for(
        "the commit of b and c",
        lambda: all(cluster.engines[n].snapshot.committed_steps > FAILED_STEP for n in "bc"),
    )
    cluster.engines["d"].kill()
    cluster.wait_until_dead("d")
    assert FAILED_STEP not in {report.record.step for report in cluster.step_reports()}
    plan = [Pipeline([("c", 5), ("b", 2)], range(6))]
    cluster.recover(plan)
    finish(cluster, expected, plan)


@pytest.mark.parametrize("missing", ["other stages", "another step", "nothing"])
def test_an_engine_refuses_to_keep_what_it_has_not(cluster: EngineCluster, missing: str) -> None:
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    cluster.wait_for_step("d", 0)
    reports = cluster.fence(["b"])
    cluster.committed_steps = reports["c"].committed_steps
    plan = FINISHING
    match missing:
        case "other stages":
            plan = [Pipeline([("c", 4), ("d", 3)], range(6), in_flight=range(6))]
        case "another step":
            cluster.committed_steps += cluster.job.num_steps
        case _:
            cluster.quiesce(["c", "d"])
    for name, result in cluster.activate(plan).items():
        assert result.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE, (name, result)
        assert result.failure.metadata["field"] == "keeps_step"
