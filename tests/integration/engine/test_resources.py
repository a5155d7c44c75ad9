"""A job may change its plan thousands of times: an engine that lives through it does not grow."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from integration.engine.test_random_in_step import finishing_plan
from support.engines.cluster import EngineCluster
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import training_job
from support.engines.zygote import Zygote

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMES = "abcd"
NUM_ROUNDS = 8
STRAIGHT = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2]), Pipeline([("c", 5), ("d", 2)], [3, 4, 5])]
CROSSED = [Pipeline([("a", 2), ("c", 5)], [0, 1, 2]), Pipeline([("b", 4), ("d", 3)], [3, 4, 5])]
Plan = Sequence[Pipeline]


@pytest.fixture
def cluster(zygote: Zygote, tmp_path: Path) -> Iterator[EngineCluster]:
    """Engines of a job that does not end."""
    job = training_job(tmp_path / "job", num_steps=1_000_000)
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        cluster.prepare(*NAMES)
        yield cluster


def test_changes_of_the_plan_leak_nothing(cluster: EngineCluster) -> None:
    """Neither descriptors nor threads, whatever changes and however."""
    cluster.train(STRAIGHT)
    found: list[dict[str, int]] = []
    for number in range(NUM_ROUNDS):
        now, then = (CROSSED, STRAIGHT) if number % 2 else (STRAIGHT, CROSSED)
        hand_over(cluster, now, same(now))
        hand_over(cluster, same(now), then)
        fence_and_finish(cluster, then)
        cluster.recover(then)
        commit_some(cluster)
        found.append(num_open(cluster, at_most=found[1] if number > 1 else {}))
    assert all(found[-1][name] <= found[1][name] for name in NAMES), found


def same(plan: Plan) -> list[Pipeline]:
    """The same pipelines, whose microbatches change places."""
    first, second = plan
    return [
        replace(first, microbatches=second.microbatches, keeps=True),
        replace(second, microbatches=first.microbatches, keeps=True),
    ]


def hand_over(cluster: EngineCluster, before: Plan, after: Plan) -> None:
    handover = Handover(cluster, before, after)
    handover.stage()
    handover.switch()
    commit_some(cluster)


def fence_and_finish(cluster: EngineCluster, plan: Plan) -> None:
    """Everybody finishes the step in flight in another generation."""
    generation = cluster.generation
    reports = cluster.fence()
    cluster.roll_forward(reports)
    finishing = finishing_plan({generation: list(plan)}, reports)
    assert len(finishing) == len(plan)
    cluster.place(finishing)
    commit_some(cluster)


def commit_some(cluster: EngineCluster) -> None:
    """The first commit is behind every engine when the next is reported."""
    step = cluster.committed_steps + 1
    cluster.wait_for(
        f"step {step}", lambda: any(r.record.step >= step for r in cluster.step_reports())
    )


def num_open(cluster: EngineCluster, at_most: dict[str, int]) -> dict[str, int]:
    """Descriptors and threads of each engine, once they are no more than so many."""
    pause = threading.Event()
    for _ in range(200):
        found = {name: count(cluster.engines[name].process.pid) for name in NAMES}
        if at_most and all(found[name] <= at_most[name] for name in NAMES):
            break
        pause.wait(0.02)
    return found


def count(pid: int) -> int:
    return sum(len(list(Path(f"/proc/{pid}/{kind}").iterdir())) for kind in ("fd", "task"))
