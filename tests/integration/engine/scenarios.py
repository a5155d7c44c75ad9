"""Failures that are also run against engines without the guard they test (test_mutants)."""

from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import Quiesce
from support.engine_harness import EngineCluster
from support.small_plans import Pipeline

BEFORE = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2]), Pipeline([("c", 5), ("d", 2)], [3, 4, 5])]
WITHOUT_B = [Pipeline([("a", 7)], [0, 1]), Pipeline([("c", 5), ("d", 2)], [2, 3, 4, 5])]
FAILED_STEP = 2


def train_undisturbed(cluster: EngineCluster, digest: str) -> None:
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    cluster.wait_until_finished("a", "b", "c", "d")
    assert cluster.digest(BEFORE) == digest


def obey_a_stale_coordinator(cluster: EngineCluster, digest: str) -> None:
    """Directives of a generation that is over arrive late: each is refused by name."""
    cluster.prepare("a", "b", "c", "d")
    cluster.train(BEFORE)
    cluster.wait_for_step("d", 0)
    stale = cluster.generation - 1
    for command in (
        {"quiesce": Quiesce(mode=Quiesce.MODE_IMMEDIATE)},
        {"quiesce": Quiesce(mode=Quiesce.MODE_AT_COMMIT)},
        {"activate": cluster.activation(BEFORE)},
    ):
        for name in ("a", "d"):
            result = cluster.ask(name, stale, **command)
            assert result.failure.reason == ErrorReason.ERROR_REASON_STALE_GENERATION, result
            assert result.failure.metadata["newest"] == str(cluster.generation)
    cluster.wait_until_finished("a", "b", "c", "d")
    assert cluster.digest(BEFORE) == digest


def lose_the_only_rank_without_a_sum(cluster: EngineCluster, digest: str) -> None:
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
    cluster.wait_until_finished("c")
    assert cluster.digest(after) == digest
