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


def finish_the_step_without_a(cluster: EngineCluster, digest: str) -> None:
    """c and d, whose sums are complete as a's are, sum a second time, with what a and b left."""
    lose_a_behind_its_sums(cluster)
    cluster.roll_forward(cluster.fence(["a"]))
    finishing = [Pipeline(BEFORE[1].stages, range(6), in_flight=[3, 4, 5, 0, 1, 2])]
    for name, result in cluster.activate(finishing, followers={"b": range(3, 7)}).items():
        assert result.HasField("activated"), (name, result)
    end_as_undisturbed(cluster, digest)


def begin_the_step_again_without_a(cluster: EngineCluster, digest: str) -> None:
    """c and d have computed their share of the step, and compute all of it anew."""
    lose_a_behind_its_sums(cluster)
    cluster.recover([Pipeline(BEFORE[1].stages, range(6))])
    end_as_undisturbed(cluster, digest)


def lose_a_behind_its_sums(cluster: EngineCluster) -> None:
    fatal = {"at": "before_exchange", "action": "kill", "step": FAILED_STEP}
    cluster.prepare("a", "b", "c", "d", failpoints={"a": [fatal]})
    cluster.train(BEFORE)
    cluster.wait_until_dead("a")


def end_as_undisturbed(cluster: EngineCluster, digest: str) -> None:
    cluster.wait_until_finished("c", "d")
    assert cluster.digest([BEFORE[1]]) == digest, "something is in the step twice"
