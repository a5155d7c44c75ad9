"""Engines that die, stop, raise or are fenced in the middle of a step: the model does not notice.

Two pipelines that are cut differently. One engine fails at a named place of step 2; the survivors
are collected, rolled forward, given new places and fetch what they miss from each other. No process
that did not die is started again.
"""

from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import (
    BEFORE,
    FAILED_STEP,
    WITHOUT_B,
    finish,
)
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import Quiesce, RollForward
from planaria.api.worker.v1.report_pb2 import CommitRecord, EngineState
from support.engines.cluster import EngineCluster
from support.engines.small_plans import Pipeline

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "failpoint",
    [
        {"at": "forward", "microbatch": 1},
        {"at": "backward", "microbatch": 0},
        {"at": "wait_peer", "microbatch": 2},
        {"at": "reduce"},
        {"at": "before_exchange"},
        {"at": "before_update"},
    ],
    ids=lambda failpoint: failpoint["at"],
)
def test_an_engine_is_killed_within_a_step(
    cluster: EngineCluster, expected: ReferenceResult, failpoint: dict[str, object]
) -> None:
    fatal = {"action": "kill", "step": FAILED_STEP, **failpoint}
    cluster.prepare(*"abcd", failpoints={"b": [fatal]})
    pids = {name: cluster.engines[name].process.pid for name in "acd"}
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")
    cluster.recover(WITHOUT_B)
    finish(cluster, expected, WITHOUT_B)
    alive = [name for name in "acd" if cluster.is_alive(name)]
    assert pids == {name: cluster.engines[name].process.pid for name in alive}


def test_a_kill_between_the_phases_of_a_commit_is_rolled_forward(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """c, the last rank, has passed the exchange; b dies having passed, before it tells a."""
    plan = [Pipeline([("a", 2), ("b", 3), ("c", 2)], [0, 1, 2]), Pipeline([("d", 7)], [3, 4, 5])]
    never = str(tmp_path / "never")
    held_back = {"at": "after_exchange", "action": "hold", "step": FAILED_STEP, "until": never}
    cluster.prepare(*"abcd", failpoints={"b": [held_back]})
    cluster.train(plan)
    for name in "cd":
        cluster.wait_for_step(name, FAILED_STEP)
    cluster.engines["b"].kill()
    cluster.wait_until_dead("b")
    reports = cluster.quiesce()
    assert {name: report.committed_steps for name, report in reports.items()} == {
        "a": FAILED_STEP,
        "c": FAILED_STEP + 1,
        "d": FAILED_STEP + 1,
    }
    held = cluster.roll_forward(reports)
    # a had the very sums of the record: it needs no copy, though it never saw the decision.
    assert held["a"] == {0: FAILED_STEP + 1, 1: FAILED_STEP + 1}
    after = [Pipeline([("a", 2), ("c", 5)], [0, 2, 4]), Pipeline([("d", 7)], [1, 3, 5])]
    copied = cluster.copy_missing(after, held)
    assert copied.keys() == {"c"}
    assert copied["c"].copied.bytes > 0
    cluster.activate(after)
    finish(cluster, expected, after)


def test_a_rank_without_the_very_sums_of_a_record_says_that_it_is_stale(
    cluster: EngineCluster,
) -> None:
    """Sums of another generation may differ by rounding: they are not applied."""
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    cluster.wait_for_step("d", 0)
    report = cluster.quiesce()["a"]
    record = CommitRecord(step=report.committed_steps, generation=1, num_tokens=288)
    committed = cluster.ask("a", roll_forward=RollForward(record=record)).rolled_forward
    assert committed.committed_steps == report.committed_steps + 1
    assert committed.stale_layers == [0, 1, 2]
    assert cluster.ask("a", roll_forward=RollForward(record=record)).rolled_forward == committed


def test_a_healthy_job_may_be_fenced_at_any_moment(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    for step in range(cluster.job.num_steps - 1):
        cluster.wait_for_step("d", step)
        cluster.recover(BEFORE)
    finish(cluster, expected, BEFORE)


def test_an_exception_parks_the_engine_which_goes_on_in_the_next_generation(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    raising = {"at": "backward", "action": "raise", "step": FAILED_STEP, "microbatch": 4}
    cluster.prepare(*"abcd", failpoints={"c": [raising]})
    cluster.train(BEFORE)
    fault = cluster.wait_for_fault("c")
    assert not fault.fatal
    assert fault.failure.reason == ErrorReason.ERROR_REASON_ENGINE_FAILED
    assert "failpoint at backward" in fault.failure.message
    cluster.wait_for_state(EngineState.ENGINE_STATE_PARKED, "a", "b", "c", "d")
    cluster.recover(BEFORE)
    finish(cluster, expected, BEFORE)


def test_a_stopped_engine_does_not_delay_fenced_engines(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    """SIGSTOP: nothing shows on the network; the survivors are woken by the fence alone."""
    stopping = {"at": "wait_peer", "action": "stop", "step": FAILED_STEP}
    cluster.prepare(*"abcd", failpoints={"b": [stopping]})
    cluster.train(BEFORE)
    cluster.wait_for_step("d", FAILED_STEP - 1)
    reports = cluster.quiesce(["a", "c", "d"])
    cluster.copy_missing(WITHOUT_B, cluster.roll_forward(reports))
    cluster.activate(WITHOUT_B)
    finish(cluster, expected, WITHOUT_B)
    cluster.engines["b"].close()


def test_invariant_4_a_stale_coordinator_changes_nothing(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    """Directives of a generation that is over arrive late: each is refused by name."""
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    cluster.wait_for_step("d", 0)
    stale = cluster.generation - 1
    for command in (
        {"quiesce": Quiesce(mode=Quiesce.MODE_IMMEDIATE)},
        {"quiesce": Quiesce(mode=Quiesce.MODE_AT_COMMIT)},
        {"activate": cluster.activate_command(BEFORE)},
    ):
        for name in ("a", "d"):
            result = cluster.ask(name, stale, **command)
            assert result.failure.reason == ErrorReason.ERROR_REASON_STALE_GENERATION, result
            assert result.failure.metadata["newest"] == str(cluster.generation)
    finish(cluster, expected, BEFORE)


def test_invariant_2_no_engine_commits_before_all_have_the_sums(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    """a dies in its last backward pass, when b and c have already summed layers 3 to 6.

    Had b committed then, layers 0 to 2 of that step would be nowhere: c waits for a's part of them.
    """
    plan = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2]), Pipeline([("c", 7)], [3, 4, 5])]
    last = {"at": "backward", "action": "kill", "step": FAILED_STEP, "microbatch": 2}
    cluster.prepare("a", "b", "c", failpoints={"a": [last]})
    cluster.train(plan)
    cluster.wait_until_dead("a")
    after = [Pipeline([("c", 7)], [0, 1, 2, 3, 4, 5])]
    reports = cluster.recover(after)
    committed = {report.committed_steps for report in reports.values()}
    assert committed == {FAILED_STEP}, "somebody has committed a step that nobody could finish"
    finish(cluster, expected, after)


def test_a_source_that_dies_while_it_serves_is_replaced_by_the_next(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    """b dies in step 2, then c while a copies from it: d has the layers as well."""
    plan = [
        Pipeline([("a", 3), ("b", 4)], [0, 1]),
        Pipeline([("c", 7)], [2, 3]),
        Pipeline([("d", 7)], [4, 5]),
    ]
    dying = {"action": "kill", "step": FAILED_STEP}
    cluster.prepare(
        "a",
        "b",
        "c",
        "d",
        failpoints={"b": [{"at": "forward", **dying}], "c": [{"at": "serve_copy", **dying}]},
    )
    cluster.train(plan)
    cluster.wait_until_dead("b")
    held = cluster.roll_forward(cluster.quiesce())
    after = [Pipeline([("a", 7)], [0, 1, 2]), Pipeline([("d", 7)], [3, 4, 5])]
    copied = cluster.copy_missing(after, held)
    assert [layer.version for layer in copied["a"].copied.layers] == 7 * [FAILED_STEP]
    cluster.wait_until_dead("c")
    cluster.quiesce(["a", "d"])
    cluster.activate(after)
    finish(cluster, expected, after)


def test_pause_join_and_drain_lose_no_microbatch(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    """AT_COMMIT: all park behind the same commit, and no step is computed twice."""
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    cluster.wait_for_step("d", 0)
    cluster.prepare("e")  # while the others train
    reports = cluster.quiesce(["a", "b", "c", "d"], Quiesce.MODE_AT_COMMIT)
    assert len({report.committed_steps for report in reports.values()}) == 1
    assert not any(report.finished_microbatches for report in reports.values())
    after = [Pipeline([("e", 4), ("b", 3)], [0, 1, 2, 3]), Pipeline([("a", 7)], [4, 5])]
    cluster.copy_missing(after, cluster.roll_forward(reports))
    cluster.activate(after)
    finish(cluster, expected, after)
    steps = [report.record.step for report in cluster.step_reports()]
    assert sorted(steps) == sorted(2 * list(range(cluster.job.num_steps)))


def test_a_second_loss_while_groups_are_built_opens_the_next_generation(
    cluster: EngineCluster, expected: ReferenceResult
) -> None:
    cluster.prepare(
        "a",
        "b",
        "c",
        "d",
        failpoints={"b": [{"at": "forward", "action": "kill", "step": FAILED_STEP}]},
    )
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")
    reports = cluster.quiesce()
    held = cluster.roll_forward(reports)
    cluster.copy_missing(WITHOUT_B, held)
    waiting = [cluster.direct(name, activate=cluster.activate_command(WITHOUT_B)) for name in "ac"]
    cluster.engines["d"].kill()
    cluster.wait_until_dead("d")
    alone = [Pipeline([("c", 3), ("a", 4)], [0, 1, 2, 3, 4, 5])]
    reports = cluster.quiesce()
    for name, directive_id in zip("ac", waiting, strict=True):
        failure = cluster.wait_for_result(name, directive_id).failure
        assert failure.reason == ErrorReason.ERROR_REASON_STALE_GENERATION
    cluster.copy_missing(alone, cluster.roll_forward(reports))
    cluster.activate(alone)
    finish(cluster, expected, alone)
