"""Plan after plan at commits of one job, with a kill anywhere: one model."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import finish
from integration.engine.test_random_in_step import finishing_plan
from integration.engine.test_random_kills import (
    NAMES,
    NUM_LAYERS,
    NUM_MICROBATCHES,
    PLACES,
    cut,
    random_plan,
    split,
)
from planaria.api.worker.v1.directive_pb2 import DigestLayers
from planaria.api.worker.v1.report_pb2 import EngineState, FenceReport
from support.engines.cluster import EngineCluster, names_of
from support.engines.handover import Handover
from support.engines.one_engine import EngineDiedError
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import TrainingJob, training_job
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration

NUM_STEPS = 12
Plan = list[Pipeline]


@dataclass(frozen=True, kw_only=True)
class InForce:
    """A plan that engines train in, and those that follow without computing."""

    plan: Plan
    followers: Mapping[str, Sequence[int]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    return training_job(tmp_path_factory.mktemp("job"), num_steps=NUM_STEPS)


@pytest.fixture(scope="module")
def expected(job: TrainingJob) -> ReferenceResult:
    return job.run_reference()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))]
)
def test_invariant_6_however_often_the_plan_changes_the_model_is_the_same(
    job: TrainingJob, expected: ReferenceResult, zygote: Zygote, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    place = rng.choice([*PLACES, "stage", "follow", "serve_follow", "switch"])
    kill = {"at": place, "action": "kill", "since_step": rng.randrange(1, NUM_STEPS // 2)}
    with EngineCluster(tmp_path, job.files, zygote) as cluster:
        cluster.prepare(*NAMES, failpoints={rng.choice(NAMES): [kill]})
        now = InForce(plan=random_plan(rng, rng.sample(NAMES, rng.randint(3, 5))))
        cluster.train(now.plan)
        while not is_over(cluster, now.plan):
            now = change(cluster, rng, now)
        finish(cluster, expected, now.plan)


def is_over(cluster: EngineCluster, plan: Plan) -> bool:
    """Whether all engines of a plan have done the last step."""
    finished = EngineState.ENGINE_STATE_FINISHED
    return all(cluster.engines[name].snapshot.state == finished for name in names_of(plan))


def next_plan(rng: random.Random, plan: Plan) -> Plan:
    """Keeps some pipelines, and makes others of some of the rest: two in all, at least."""
    kept = [replace(p, keeps=True, in_flight=()) for p in plan if rng.random() < 0.6]
    kept_names = names_of(kept)
    rest = rng.sample([n for n in NAMES if n not in kept_names], len(NAMES) - len(kept_names))
    most = min(len(rest), 4 - len(kept))
    num_new = rng.randint(min(max(2 - len(kept), 0), most), most)
    used = rest[: rng.randint(num_new, len(rest))] if num_new else []
    new = [
        Pipeline(list(zip(own, cut(rng, NUM_LAYERS, len(own)), strict=True)), ())
        for own in (split(rng, used, num_new) if num_new else [])
    ]
    shares = split(rng, rng.sample(range(NUM_MICROBATCHES), NUM_MICROBATCHES), len(kept + new))
    return [replace(p, microbatches=own) for p, own in zip(kept + new, shares, strict=True)]


def change(cluster: EngineCluster, rng: random.Random, now: InForce) -> InForce:
    """Changes the plan as a coordinator does; returns what is in force."""
    members = [*names_of(now.plan), *now.followers]
    cluster.prepare(*(name for name in NAMES if name not in members))
    after = next_plan(rng, now.plan)
    if len(after) < 2:
        return now
    handover = Handover(cluster, now.plan, after, followers=now.followers)
    try:
        handover.begin_staging()
        for name in handover.staying:
            if not handover.staging_result(name).HasField("staged"):
                raise EngineDiedError(name)  # it has lost a source or a peer
        handover.begin_switching()
        if not switched(cluster, handover, now.plan):
            return now
        handover.wait_until_switched()
    except EngineDiedError:
        return recovered(cluster, rng, handover, now, InForce(plan=after))
    return InForce(plan=after)


def switched(cluster: EngineCluster, handover: Handover, before: Plan) -> bool:
    """Waits for the new plan, or for the end of the job before it."""
    members = [*handover.staying, *handover.leaving]

    def found() -> str:
        dead = [name for name in members if not cluster.is_alive(name)]
        if dead:
            raise EngineDiedError(str(dead))
        if all(handover.has_switched(name) for name in members):
            return "switched"
        return "over" if is_over(cluster, before) else ""

    if cluster.wait_for("a new plan", found) == "switched":
        return True
    for name in handover.staying:  # what they had said before is here then
        cluster.ask(name, digest_layers=DigestLayers())
    return any(handover.has_switched(name) for name in handover.staying)


def recovered(
    cluster: EngineCluster,
    rng: random.Random,
    handover: Handover,
    before: InForce,
    after: InForce,
) -> InForce:
    """In doubt which plan is in force, the reports decide; who is whole in it finishes the step."""
    while True:
        lost = [name for name in cluster.members if not cluster.is_alive(name)]
        try:
            reports = cluster.fence(lost)
            now = after if is_proven(handover.generation, reports) else before
            cluster.roll_forward(reports)
            reports = cluster.fence(lost)
            held = cluster.roll_forward(reports)
            # A joiner that has no place yet has no step either.
            current = {n: r for n, r in reports.items() if r.layers}
            plan = finishing_plan({0: now.plan}, current) if rng.random() < 0.7 else []
            if not plan:
                alive = [name for name in NAMES if cluster.is_alive(name)]
                plan = random_plan(rng, alive)
                cluster.members = alive
                cluster.recover(plan)
                return InForce(plan=plan)
            layers = {
                name: [x for x, version in own.items() if version == cluster.committed_steps]
                for name, own in held.items()
                if name not in names_of(plan)
            }
            followers = {name: own for name, own in layers.items() if own}
            cluster.place(plan, followers=followers)
        except EngineDiedError:
            continue
        return InForce(plan=plan, followers=followers)


def is_proven(candidate: int, reports: Mapping[str, FenceReport]) -> bool:
    """Whether somebody passed the commit that puts the next plan in force."""
    return any(
        candidate in (r.last_commit.next_generation, r.last_commit.generation, r.applied_generation)
        for r in reports.values()
    )
