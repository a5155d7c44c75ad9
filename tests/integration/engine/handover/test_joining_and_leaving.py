"""The plan changes at a commit: nobody stops for it, and the model is not affected.

One engine is held at a step until the test has said what is to happen after that step.
"""

from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.handover.staged import (
    BOTH,
    NUM_STEPS,
    OTHER_PAIR,
    PAIR,
    STEP,
    WITH_E,
    WITHOUT_D,
    begin,
    hand_over,
    held,
)
from integration.engine.scenarios import finish
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import DigestLayers, Switch
from support.engines.cluster import EngineCluster
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import training_job
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration


def test_a_node_joins_while_the_others_train(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """However long its layers take, steps are committed meanwhile."""
    copy = tmp_path / "copy"
    slow = {"at": "follow", "action": "hold", "until": str(copy)}
    begin(cluster, go, joining="e", failpoints={"e": [slow]})
    handover = Handover(cluster, BOTH, WITH_E)
    handover.begin_staging()
    cluster.wait_for_step("d", STEP - 1)
    assert not handover.has_answered("e")
    copy.touch()
    staged = handover.wait_until_staged()
    assert (staged["e"].bytes > 0, staged["a"].bytes) == (True, 0)
    handover.switch_after(STEP, go)
    handover.wait_until_switched()
    assert cluster.committed_steps == STEP + 1
    finish(cluster, expected, WITH_E)
    assert not handover.has_parked(*"abcd")


def test_a_node_leaves_and_another_takes_over_its_layers(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """c, which trains, follows what only d has of its pipeline; then it trains all layers."""
    begin(cluster, go)
    handover = Handover(cluster, BOTH, WITHOUT_D)
    staged = handover.stage()
    assert staged["c"].bytes > 0
    handover.switch_after(STEP, go)
    _, left = handover.wait_until_switched()
    assert left["d"].committed_steps == STEP + 1
    assert left["d"].last_commit.next_generation == handover.generation
    assert left["d"].applied_generation == 0
    finish(cluster, expected, WITHOUT_D)
    assert not handover.has_parked(*"abc")


@pytest.mark.slow
def test_plans_change_one_after_the_other(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """A join, and behind the next commit a drain; old groups last as long as they are needed."""
    later = tmp_path / "later"
    begin(cluster, go, joining="e", failpoints={"a": [held(later, STEP + 1)]})
    first = hand_over(cluster, go, WITH_E)
    first.wait_until_switched()
    after = [Pipeline(PAIR, [0, 1, 2], keeps=True), Pipeline([("e", 7)], [3, 4, 5], keeps=True)]
    second = Handover(cluster, WITH_E, after)
    second.stage()
    second.switch_after(STEP + 1, later)
    _, left = second.wait_until_switched()
    assert left.keys() == {"c", "d"}
    assert cluster.committed_steps == STEP + 2
    finish(cluster, expected, after)
    assert not first.has_parked(*"ab")
    assert not second.has_parked(*"abe")


def test_a_lost_pipeline_is_regrown_without_a_second_stop(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """c and d finish the step in which b died; a, now a follower, becomes a pipeline of its own."""
    fatal = {"at": "backward", "action": "kill", "step": 1, "microbatch": 1}
    cluster.prepare(*"abcd", failpoints={"b": [fatal], "c": [held(go)]})
    cluster.train(BOTH)
    cluster.wait_until_dead("b")
    cluster.fence(["b"])
    cluster.committed_steps = 1
    finishing = [Pipeline(OTHER_PAIR, range(6), in_flight=[3, 4, 5, 0, 1, 2])]
    cluster.place(finishing, followers={"a": range(3)})
    cluster.wait_for_step("d", 1)
    for name in "cd":  # it answers behind having said that it rested before it finished the step
        cluster.ask(name, cluster.generation, digest_layers=DigestLayers())
    regrown = [Pipeline([("a", 7)], [0, 1]), Pipeline(OTHER_PAIR, [2, 3, 4, 5], keeps=True)]
    handover = Handover(cluster, finishing, regrown, followers={"a": range(3)})
    handover.stage()
    handover.switch_after(STEP, go)
    handover.wait_until_switched()
    finish(cluster, expected, regrown)
    assert not handover.has_parked(*"cd")


@pytest.mark.slow
def test_a_joiner_needs_no_switch_of_its_own(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """It activates after the commit that it follows, and answers when it is asked."""
    begin(cluster, go, joining="e")
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_after(STEP, go, but="e")
    finish(cluster, expected, WITH_E)
    activated = cluster.ask("e", handover.generation, switch=Switch()).activated
    assert activated.committed_steps == STEP + 1


@pytest.mark.slow
def test_after_the_last_step_no_engine_switches(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    cluster.prepare(*"abcde", failpoints={"a": [held(go, NUM_STEPS - 1)]})
    cluster.train(BOTH)
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    handover.switch_after(NUM_STEPS - 1, go)
    finish(cluster, expected, BOTH)
    reports = cluster.quiesce()
    assert not reports["e"].layers
    result = handover.switching_result("a")
    assert result.failure.reason == ErrorReason.ERROR_REASON_STALE_GENERATION


@pytest.mark.slow
def test_without_a_switch_nothing_happens(
    cluster: EngineCluster, expected: ReferenceResult, go: Path
) -> None:
    """What is staged is dropped by the next generation, and those who wait for it are told."""
    begin(cluster, go, joining="e")
    handover = Handover(cluster, BOTH, WITH_E)
    handover.stage()
    again = Handover(cluster, BOTH, WITHOUT_D)
    again.stage()
    late = cluster.ask("a", handover.generation, switch=Switch())
    assert late.failure.reason == ErrorReason.ERROR_REASON_STALE_GENERATION
    early = cluster.ask("e", again.generation, switch=Switch())
    assert early.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE
    go.touch()
    finish(cluster, expected, BOTH)
    assert not handover.has_parked(*"abcd")


@pytest.mark.slow
def test_replicas_are_equal_in_the_default_mode_too(tmp_path: Path, zygote: Zygote) -> None:
    """Who joins applies the very sums of those it follows; what they are depends on the plan."""
    job = training_job(tmp_path / "job", num_steps=NUM_STEPS, reproducible=False)
    go = tmp_path / "go"
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        begin(cluster, go, joining="e")
        handover = Handover(cluster, BOTH, WITH_E)
        handover.begin_staging()  # while steps are committed
        handover.wait_until_staged()
        handover.switch_after(STEP, go)
        handover.wait_until_switched()
        cluster.wait_until_finished(*"abcde")
        cluster.digest(WITH_E)  # all replicas have the same, or it fails


def test_layers_of_the_old_assignment_are_kept_until_the_first_commit(
    cluster: EngineCluster, expected: ReferenceResult, go: Path, tmp_path: Path
) -> None:
    """Whoever takes them over may not have them yet: until then they are replicas like any."""
    later = tmp_path / "later"
    begin(cluster, go, failpoints={"c": [held(later, STEP + 1)]})
    shifted = [
        Pipeline([("a", 2), ("b", 5)], [0, 1, 2]),
        Pipeline(OTHER_PAIR, [3, 4, 5], keeps=True),
    ]
    handover = hand_over(cluster, go, shifted)
    handover.wait_until_switched()
    reports = cluster.fence()
    assert {x.layer: x.version for x in reports["a"].layers} == dict.fromkeys(range(3), STEP + 1)
    keeping = [Pipeline(p.stages, p.microbatches, in_flight=p.microbatches) for p in shifted]
    cluster.committed_steps = STEP + 1
    cluster.place(keeping)
    later.touch()
    finish(cluster, expected, keeping)
    reports = cluster.quiesce(["a"])
    assert [x.layer for x in reports["a"].layers] == [0, 1]
