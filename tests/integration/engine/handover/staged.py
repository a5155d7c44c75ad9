"""A change of the plan that one engine holds up, until a test lets it go."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from planaria.api.worker.v1.directive_pb2 import DigestLayers, Quiesce
from planaria.api.worker.v1.report_pb2 import FenceReport
from support.engines.cluster import EngineCluster, names_of
from support.engines.handover import Handover
from support.engines.small_plans import Pipeline

NUM_STEPS = 9
STEP = 4
"""After this step the plan changes, unless a test says otherwise."""
PAIR = [("a", 3), ("b", 4)]
OTHER_PAIR = [("c", 5), ("d", 2)]
BOTH = [Pipeline(PAIR, [0, 1, 2]), Pipeline(OTHER_PAIR, [3, 4, 5])]
WITH_E = [
    Pipeline(PAIR, [0, 1], keeps=True),
    Pipeline(OTHER_PAIR, [2, 3], keeps=True),
    Pipeline([("e", 7)], [4, 5]),
]
WITHOUT_D = [Pipeline(PAIR, [0, 1, 2], keeps=True), Pipeline([("c", 7)], [3, 4, 5])]


def held(path: Path, step: int = STEP) -> dict[str, object]:
    """Keeps an engine from beginning a step."""
    return {"at": "forward", "action": "hold", "step": step, "until": str(path)}


def begin(
    cluster: EngineCluster,
    go: Path,
    before: Sequence[Pipeline] = BOTH,
    joining: str = "",
    failpoints: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
) -> None:
    """Trains up to STEP, where a waits."""
    armed = {name: list(points) for name, points in (failpoints or {}).items()}
    armed.setdefault("a", []).append(held(go))
    cluster.prepare(*names_of(before), *joining, failpoints=armed)
    cluster.train(before)


def hand_over(cluster: EngineCluster, go: Path, after: Sequence[Pipeline]) -> Handover:
    """Stages the plan after BOTH, and lets a begin STEP when all are to switch after it."""
    handover = Handover(cluster, BOTH, after)
    handover.stage()
    handover.switch_after(STEP, go)
    return handover


def fence_while_held(
    cluster: EngineCluster, until: Path, names: Sequence[str]
) -> dict[str, FenceReport]:
    """Fences engines, one of which is held until all are fenced."""
    cluster.generation += 1
    fence = Quiesce(mode=Quiesce.MODE_FENCE)
    asked = {name: cluster.direct(name, quiesce=fence) for name in names}
    for name in names:  # answered behind the fence
        cluster.ask(name, digest_layers=DigestLayers())
    until.touch()
    return {name: cluster.wait_for_result(name, asked[name]).fence_report for name in names}
