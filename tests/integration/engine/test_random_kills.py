"""Five engines, random plans, kills at random places, replacements that join: one model."""

import random
from collections.abc import Sequence
from typing import TypeVar

import pytest

from benchmarks.oracle.reference import ReferenceResult
from planaria.api.worker.v1.directive_pb2 import Quiesce
from planaria.api.worker.v1.report_pb2 import EngineState
from support.engines.cluster import EngineCluster, names_of
from support.engines.one_engine import EngineDiedError
from support.engines.small_plans import Pipeline

pytestmark = pytest.mark.integration

T = TypeVar("T")
NAMES = ["a", "b", "c", "d", "e"]
NUM_LAYERS, NUM_MICROBATCHES = 7, 6
PLACES = [
    "forward",
    "backward",
    "wait_peer",
    "reduce",
    "before_exchange",
    "after_exchange",
    "before_update",
]


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))]
)
def test_invariant_6_whatever_dies_wherever_the_model_is_the_same(
    cluster: EngineCluster, expected: ReferenceResult, seed: int
) -> None:
    """Two pipelines at least, so that each kill leaves a replica of every layer."""
    rng = random.Random(seed)
    victims = dict(zip(rng.sample(NAMES, 2), (1, 3), strict=True))
    failpoints = {name: [random_kill(rng, step)] for name, step in victims.items()}
    cluster.prepare(*NAMES, failpoints=failpoints)
    plan = random_plan(rng, NAMES)
    cluster.train(plan)
    while not wait_for_a_death_or_the_end(cluster, plan):
        plan = change_plan(cluster, rng, Quiesce.MODE_IMMEDIATE)
        if rng.random() < 0.5:
            cluster.prepare(*NAMES)  # while the others train
            plan = change_plan(cluster, rng, Quiesce.MODE_AT_COMMIT)
    assert cluster.digest(plan) == expected.digest
    assert cluster.losses() == expected.losses
    for name in victims:  # a kill that found no opportunity must not meet the next test
        cluster.engines[name].close()


def random_kill(rng: random.Random, step: int) -> dict[str, object]:
    kill: dict[str, object] = {"at": rng.choice(PLACES), "action": "kill", "step": step}
    if kill["at"] in ("forward", "backward", "wait_peer"):
        kill["microbatch"] = rng.randrange(NUM_MICROBATCHES)
    return kill


def random_plan(rng: random.Random, names: Sequence[str]) -> list[Pipeline]:
    """Two or three pipelines of any depth, cut anywhere, over all the engines."""
    num_pipelines = rng.randint(2, min(3, len(names)))
    engines = rng.sample(names, len(names))
    microbatches = rng.sample(range(NUM_MICROBATCHES), NUM_MICROBATCHES)
    return [
        Pipeline(list(zip(stage_names, cut(rng, NUM_LAYERS, len(stage_names)), strict=True)), own)
        for stage_names, own in zip(
            split(rng, engines, num_pipelines),
            split(rng, microbatches, num_pipelines),
            strict=True,
        )
    ]


def cut(rng: random.Random, total: int, num_parts: int) -> list[int]:
    """Positive lengths of parts."""
    ends = [*sorted(rng.sample(range(1, total), num_parts - 1)), total]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def split(rng: random.Random, items: Sequence[T], num_parts: int) -> list[list[T]]:
    lengths = cut(rng, len(items), num_parts)
    starts = [sum(lengths[:index]) for index in range(num_parts)]
    return [list(items[x : x + n]) for x, n in zip(starts, lengths, strict=True)]


def wait_for_a_death_or_the_end(cluster: EngineCluster, plan: Sequence[Pipeline]) -> bool:
    """True when all have finished."""
    names = names_of(plan)

    def found() -> str:
        if not all(cluster.is_alive(name) for name in names):
            return "death"
        states = {cluster.engines[name].snapshot.state for name in names}
        return "end" if states == {EngineState.ENGINE_STATE_FINISHED} else ""

    return cluster.wait_for("death or end", found) == "end"


def change_plan(
    cluster: EngineCluster, rng: random.Random, mode: "Quiesce.Mode.ValueType"
) -> list[Pipeline]:
    """As a coordinator does: a death in the middle opens the next generation."""
    while True:
        alive = [name for name in NAMES if cluster.is_alive(name)]
        if not cluster.is_whole:
            mode = Quiesce.MODE_IMMEDIATE  # a commit would never come
        plan = random_plan(rng, alive)
        try:
            reports = cluster.quiesce(alive, mode)
            cluster.copy_missing(plan, cluster.roll_forward(reports))
            answers = cluster.activate(plan)
        except EngineDiedError:
            mode = Quiesce.MODE_IMMEDIATE
            continue
        if all(answer.HasField("activated") for answer in answers.values()):
            return plan
        assert alive != [name for name in NAMES if cluster.is_alive(name)], answers
        mode = Quiesce.MODE_IMMEDIATE
