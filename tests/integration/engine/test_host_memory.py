"""Engines whose tensors go by way of host memory, as those that share a GPU do, on the CPU."""

from pathlib import Path

import pytest

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import BEFORE, FAILED_STEP, WITHOUT_B, finish
from support.engines.cluster import EngineCluster
from support.engines.training_jobs import TrainingJob
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration


def test_a_loss_changes_no_bit(
    tmp_path: Path, job: TrainingJob, expected: ReferenceResult, zygote: Zygote
) -> None:
    """Activations, gradients, sums and the exchange, before and after a kill within a sum."""
    with EngineCluster(tmp_path, job.files, zygote, transport="gloo_via_host") as cluster:
        killed = {"at": "reduce", "action": "kill", "step": FAILED_STEP}
        cluster.prepare(*"abcd", failpoints={"b": [killed]})
        cluster.train(BEFORE)
        cluster.wait_until_dead("b")
        cluster.recover(WITHOUT_B)
        finish(cluster, expected, WITHOUT_B)
