"""An engine whose agent stays away does nothing with its layers, and keeps them."""

from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import BEFORE, FAILED_STEP, finish
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import Copy, LayerSource
from support.engines.cluster import EngineCluster

pytestmark = pytest.mark.integration


def test_it_fences_itself_and_goes_on_after_a_fence_of_the_coordinator(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """[4] Nobody commits the step in which one of them was left alone; nothing is lost."""
    go = str(tmp_path / "go")
    hold = {"at": "backward", "action": "hold", "step": FAILED_STEP, "until": go}
    cluster.prepare(*"abcd", failpoints={"b": [hold]})
    cluster.train(BEFORE)
    cluster.wait_for_step("d", FAILED_STEP - 1)
    left_alone = cluster.engines["b"]
    left_alone.end_lease()
    fault = cluster.wait_for_fault("b")
    assert not fault.fatal
    assert fault.failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    assert "fenced itself" in fault.failure.message
    Path(go).touch()

    cluster.prepare("e")
    there = left_alone.snapshot.data_address
    source = LayerSource(layer=3, addresses=[there])
    command = Copy(layers=[source], version=FAILED_STEP)
    refusal = cluster.ask("e", copy=command).failure
    assert refusal.reason == ErrorReason.ERROR_REASON_COPY_FAILED

    assert cluster.is_alive("b")
    cluster.recover(BEFORE)  # who was left alone may be a step late
    assert cluster.committed_steps == FAILED_STEP
    finish(cluster, expected, BEFORE)
