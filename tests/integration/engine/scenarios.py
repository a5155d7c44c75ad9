"""What most tests of failures begin and end with."""

from collections.abc import Mapping, Sequence

from benchmarks.oracle.reference import ReferenceResult
from planaria.api.worker.v1.report_pb2 import FenceReport
from support.engines.cluster import EngineCluster, names_of
from support.engines.small_plans import Pipeline

BEFORE = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2]), Pipeline([("c", 5), ("d", 2)], [3, 4, 5])]
WITHOUT_B = [Pipeline([("a", 7)], [0, 1]), Pipeline([("c", 5), ("d", 2)], [2, 3, 4, 5])]
FAILED_STEP = 2


def kept(reports: Mapping[str, FenceReport]) -> dict[str, list[int]]:
    return {name: list(report.kept_microbatches) for name, report in reports.items()}


def finish(
    cluster: EngineCluster,
    expected: ReferenceResult,
    plan: Sequence[Pipeline],
    followers: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """The job ends as if nothing had happened; followers have every step."""
    cluster.wait_until_finished(*names_of(plan), *(followers or {}))
    assert cluster.digest(plan) == expected.digest
    begin, evaluations = cluster.base_steps, expected.evaluation_losses
    assert cluster.losses() == expected.losses[begin:]
    assert cluster.evaluation_losses() == {s: x for s, x in evaluations.items() if s >= begin}
    for name, layers in (followers or {}).items():
        report = cluster.quiesce([name])[name]
        versions = {layer.layer: layer.version for layer in report.layers}
        assert versions == dict.fromkeys(layers, cluster.job.num_steps)
