"""The copies for a checkpoint, of one version whatever happens meanwhile."""

from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import finish
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import DigestLayers, WriteCheckpoint
from planaria.api.worker.v1.report_pb2 import DirectiveResult
from support.engines.checkpoints import checkpointed
from support.engines.checkpoints import reports as said_of
from support.engines.cluster import EngineCluster
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import TrainingJob
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration

ALL = range(6)
ON_THREE = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2]), Pipeline([("c", 7)], [3, 4, 5])]
ON_C = [Pipeline([("c", 7)], ALL, in_flight=ALL)]


@pytest.mark.parametrize("goes_on", [True, False], ids=["whole_go_on", "all_stop"])
def test_copies_that_take_long_hold_up_no_report(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, expected: ReferenceResult, goes_on: bool
) -> None:
    """b dies while a and c copy for the checkpoint of step 2. Guard: they are not waited for, since
    they can change nothing any more; a large stage is copied for longer than a report may take. The
    step that c reports behind its copies it reports by then."""
    copied = tmp_path / "copied"
    slow = {"at": "checkpoint_copy", "step": 2, "action": "hold", "until": str(copied)}
    kill = {"at": "wait_peer", "step": 2, "action": "kill"}
    files = checkpointed(job.files, tmp_path / "runs")
    with EngineCluster(tmp_path, files, zygote) as cluster:
        cluster.prepare("a", "b", "c", failpoints={"a": [slow], "b": [kill], "c": [slow]})
        cluster.train(ON_THREE)
        cluster.wait_until_dead("b")
        cluster.wait_for("both to copy", lambda: all(said_of(cluster, 2)[name] for name in "ac"))
        assert 1 not in {report.record.step for report in cluster.step_reports("c")}
        reports = cluster.fence(lost=["b"]) if goes_on else cluster.quiesce("ac")
        assert reports["a"].HasField("park_time")
        assert {report.committed_steps for report in reports.values()} == {2}
        assert 1 in {report.record.step for report in cluster.step_reports("c")}
        cluster.committed_steps = 2
        plan = ON_C if goes_on else [Pipeline([("c", 7)], ALL)]
        rest = cluster.activate_command(plan, followers={"a": [0, 1, 2]} if goes_on else {})
        names = "ac" if goes_on else "c"
        asked = {name: cluster.direct(name, activate=rest) for name in names}
        copied.touch()
        for name, directive_id in asked.items():
            assert cluster.wait_for_result(name, directive_id).HasField("activated")
        cluster.wait_until_finished(*names)
        assert cluster.digest(plan) == expected.digest


def test_copies_that_take_long_hold_up_no_answer_to_a_commit(
    tmp_path: Path, job: TrainingJob, zygote: Zygote, expected: ReferenceResult
) -> None:
    """b dies between the phases of step 2, and a copies long when it has rolled forward. Guard: a
    has answered by then, and reports when it is fenced again: else it would count as lost."""
    copied = tmp_path / "copied"
    slow = {"at": "checkpoint_copy", "step": 3, "action": "hold", "until": str(copied)}
    silent = {"at": "after_exchange", "step": 2, "action": "hold", "until": str(tmp_path / "never")}
    files = checkpointed(job.files, tmp_path / "runs", every_steps=3)
    with EngineCluster(tmp_path, files, zygote) as cluster:
        cluster.prepare("a", "b", "c", "d", failpoints={"a": [slow], "b": [silent]})
        cluster.train(
            [Pipeline([("a", 2), ("b", 3), ("c", 2)], [0, 1, 2]), Pipeline([("d", 7)], [3, 4, 5])]
        )
        for name in "cd":
            cluster.wait_for_step(name, 2)
        cluster.engines["b"].kill()
        cluster.wait_until_dead("b")
        held = cluster.roll_forward(cluster.quiesce())
        assert held["a"] == {0: 3, 1: 3}
        again = cluster.fence(lost=["b"])
        assert again["a"].committed_steps == 3
        assert not copied.exists()
        copied.touch()
        after = [Pipeline([("a", 2), ("c", 5)], [0, 2, 4]), Pipeline([("d", 7)], [1, 3, 5])]
        cluster.copy_missing(after, held)
        cluster.activate(after)
        finish(cluster, expected, after)


def test_a_follower_that_is_fenced_while_it_copies_reports_the_step(
    tmp_path: Path, job: TrainingJob, zygote: Zygote
) -> None:
    """c, whose step 2 a follows, dies while both copy for a checkpoint, and has told nobody."""
    slow = {"at": "checkpoint_copy", "step": 3, "action": "hold", "until": str(tmp_path / "never")}
    kill = {"at": "wait_peer", "step": 2, "action": "kill"}
    files = checkpointed(job.files, tmp_path / "runs", every_steps=3)
    with EngineCluster(tmp_path, files, zygote) as cluster:
        cluster.prepare("a", "b", "c", failpoints={"a": [slow], "b": [kill], "c": [slow]})
        cluster.train([Pipeline([("b", 3), ("a", 4)], [0, 1, 2]), Pipeline([("c", 7)], [3, 4, 5])])
        cluster.wait_until_dead("b")
        cluster.fence(lost=["b"])
        cluster.committed_steps = 2
        rest = cluster.activate_command(ON_C, followers={"a": [3, 4, 5, 6]})
        for name in "ac":
            cluster.direct(name, activate=rest)
        cluster.wait_for("both to copy", lambda: all(said_of(cluster, 3)[name] for name in "ac"))
        assert 2 not in {report.record.step for report in cluster.step_reports()}
        cluster.engines["c"].kill()
        cluster.wait_until_dead("c")
        cluster.fence(lost=["c"])
        assert 2 in {report.record.step for report in cluster.step_reports()}


def let_a_commit_overtake_a_copy(cluster: EngineCluster, folder: Path) -> DirectiveResult:
    """a is told to write layer 3 of step 3, and commits step 3 between two of its tensors."""
    go, copied = folder / "go", folder / "copied"
    hold = {"at": "forward", "step": 3, "action": "hold", "until": str(go)}
    slow = {"at": "checkpoint_copy", "step": 3, "action": "hold", "until": str(copied)}
    cluster.prepare("a", failpoints={"a": [hold, slow]})
    cluster.train([Pipeline([("a", 7)], ALL)])
    cluster.wait_for_step("a", 2)
    writing = cluster.direct(
        "a", cluster.generation, write_checkpoint=WriteCheckpoint(version=3, layers=[3])
    )
    cluster.ask("a", digest_layers=DigestLayers(layers=[0]))  # the directive before has begun
    go.touch()
    cluster.wait_for_step("a", 3)
    copied.touch()
    return cluster.wait_for_result("a", writing)


def test_a_copy_that_a_commit_overtakes_is_not_written(
    tmp_path: Path, job: TrainingJob, zygote: Zygote
) -> None:
    """Half of it would be of another version, and its checksum right."""
    files = checkpointed(job.files, tmp_path / "runs")
    with EngineCluster(tmp_path, files, zygote) as cluster:
        result = let_a_commit_overtake_a_copy(cluster, tmp_path)
    assert result.failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE, "a torn copy is written"
    assert "layer 3 is not held in version 3 any more" in result.failure.message
