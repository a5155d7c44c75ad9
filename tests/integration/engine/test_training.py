"""Real engines train one job under any plan, and end bit for bit where one plain loop ends."""

from collections.abc import Sequence

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import finish
from support.engines.cluster import EngineCluster, names_of
from support.engines.small_plans import Pipeline

pytestmark = pytest.mark.integration

ALL = list(range(6))


PLANS = {
    "one engine": [Pipeline([("a", 7)], ALL)],
    "one pipeline of two": [Pipeline([("a", 3), ("b", 4)], ALL)],
    "two replicas": [Pipeline([("a", 7)], ALL[:4]), Pipeline([("b", 7)], ALL[4:])],
    "two cuts on three": [
        Pipeline([("a", 2), ("b", 5)], ALL[1:]),
        Pipeline([("c", 7)], ALL[:1]),
    ],
    "three pipelines on five": [
        Pipeline([("a", 3), ("b", 4)], [5, 0, 2]),
        Pipeline([("c", 5), ("d", 2)], [1, 4]),
        Pipeline([("e", 7)], [3]),
    ],
    "one pipeline of five": [
        Pipeline([("e", 1), ("d", 2), ("c", 1), ("b", 2), ("a", 1)], ALL),
    ],
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_invariant_6_the_plan_is_invisible_to_the_model(
    cluster: EngineCluster, expected: ReferenceResult, plan: Sequence[Pipeline]
) -> None:
    cluster.prepare(*names_of(plan))
    cluster.train(plan)
    finish(cluster, expected, plan)
