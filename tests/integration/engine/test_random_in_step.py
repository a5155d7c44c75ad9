"""Random plans and kills again, met without stopping: who is whole finishes the step in flight."""

import random
from collections.abc import Mapping, Sequence
from itertools import cycle

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.test_random_kills import (
    NAMES,
    NUM_MICROBATCHES,
    change_plan,
    random_kill,
    random_plan,
    wait_for_a_death_or_the_end,
)
from planaria.api.worker.v1.directive_pb2 import Quiesce
from planaria.api.worker.v1.report_pb2 import FenceReport
from support.engines.cluster import EngineCluster, names_of
from support.engines.one_engine import EngineDiedError
from support.engines.small_plans import Pipeline

pytestmark = pytest.mark.integration

Plan = list[Pipeline]


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))]
)
def test_invariant_8_healthy_pipelines_finish_the_step(
    cluster: EngineCluster, expected: ReferenceResult, seed: int
) -> None:
    rng = random.Random(seed)
    victims = dict(zip(rng.sample(NAMES, 2), (1, 3), strict=True))
    failpoints = {name: [random_kill(rng, step)] for name, step in victims.items()}
    cluster.prepare(*NAMES, failpoints=failpoints)
    plan: Plan = []
    while len(plan) < 3:  # so that two kills leave a replica of every layer
        plan = random_plan(rng, NAMES)
    cluster.train(plan)
    plans = {cluster.generation: plan}
    while not wait_for_a_death_or_the_end(cluster, [everybody(cluster)]):
        plan = finish_the_step(cluster, rng, plans)
        if rng.random() < 0.5:
            cluster.prepare(*NAMES)  # while the others train
            plan = change_plan(cluster, rng, Quiesce.MODE_AT_COMMIT)
            plans = {cluster.generation: plan}
    assert cluster.digest(plan) == expected.digest
    assert cluster.losses() == expected.losses
    for engine in cluster.engines.values():
        engine.close()


def everybody(cluster: EngineCluster) -> Pipeline:
    """Those who take part now, followers as well."""
    return Pipeline([(name, 0) for name in cluster.members], ())


def finish_the_step(cluster: EngineCluster, rng: random.Random, plans: dict[int, Plan]) -> Plan:
    """As a coordinator does; when nobody is whole, everybody begins the step again.

    Args:
        cluster: the engines.
        rng: for plans.
        plans: those that engines may have accepted, by generation; added to.
    """
    while True:
        lost = [name for name in cluster.members if not cluster.is_alive(name)]
        try:
            reports = cluster.fence(lost)
            held = cluster.roll_forward(reports)
            plan = finishing_plan(plans, reports)
            if not plan:
                plan = change_plan(cluster, rng, Quiesce.MODE_IMMEDIATE)
                plans.clear()
                plans[cluster.generation] = plan
                return plan
            plans[cluster.generation] = plan
            placed = set(names_of(plan))
            current = {
                name: [x for x, version in layers.items() if version == cluster.committed_steps]
                for name, layers in held.items()
                if name not in placed
            }
            followers = {name: layers for name, layers in current.items() if layers}
            answers = cluster.activate(plan, followers=followers)
        except EngineDiedError:
            continue
        if all(answer.HasField("activated") for answer in answers.values()):
            return plan
        assert not all(cluster.is_alive(name) for name in (*placed, *followers)), answers


def finishing_plan(plans: Mapping[int, Plan], reports: Mapping[str, FenceReport]) -> Plan:
    """The healthy pipelines, with what they keep and their share of the rest, if there are any."""
    target = max(report.committed_steps for report in reports.values())
    found = [(p, what_it_keeps(p, plans, reports, target)) for p in plans[max(plans)]]
    whole = [(pipeline, list(kept)) for pipeline, kept in found if kept]
    if not whole:
        return []
    every_step: list[list[int]] = [[] for _ in whole]
    for microbatch, mine in zip(range(NUM_MICROBATCHES), cycle(every_step), strict=False):
        mine.append(microbatch)
    pool = set(range(NUM_MICROBATCHES)).difference(*(kept for _, kept in whole))
    for microbatch, (_, kept) in zip(sorted(pool), cycle(whole), strict=False):
        kept.append(microbatch)
    return [
        Pipeline(pipeline.stages, mine, in_flight=kept)
        for (pipeline, kept), mine in zip(whole, every_step, strict=True)
    ]


def what_it_keeps(
    pipeline: Pipeline, plans: Mapping[int, Plan], reports: Mapping[str, FenceReport], target: int
) -> Sequence[int]:
    """Microbatches of step `target` that a pipeline has or will have; none if it is not whole."""
    names = [name for name, _ in pipeline.stages]
    if any(name not in reports or not reports[name].kept_microbatches for name in names):
        return ()
    generations = {reports[name].applied_generation for name in names}
    if len(generations) > 1:
        return ()
    if any(reports[name].committed_steps < target for name in names):
        # Those have been told of the commit, and have begun the next step as the others had.
        (generation,) = generations
        return next(p.microbatches for p in plans[generation] if p.stages == pipeline.stages)
    (kept,) = {tuple(reports[name].kept_microbatches) for name in names}
    return kept
