"""An engine as a process: how it begins, what it answers, what it writes and how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.oracle.reference import ReferenceResult
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import DigestLayers, Directive, Prepare, Quiesce
from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.version import PROTOCOL_VERSION
from support.engines.cluster import EngineCluster
from support.engines.small_plans import JobFiles, Pipeline
from support.engines.training_jobs import training_job
from support.engines.zygote import Zygote

pytestmark = pytest.mark.integration

PLAN = [Pipeline([("a", 3), ("b", 4)], [0, 1, 2, 3, 4, 5])]


def run_engine(tmp_path: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    fields: dict[str, object] = {
        "protocol_version": PROTOCOL_VERSION,
        "engine_id": "e",
        "job_id": "j",
        "generation": 1,
        "prepare_directive_id": "p",
        "job_spec": "{}",
        "job_secret": "s",
        "socket_path": str(tmp_path / "engine.sock"),
        "data_path": str(tmp_path / "tokens"),
    }
    (tmp_path / "config.json").write_text(json.dumps(fields | changes))
    return subprocess.run(
        [sys.executable, "-m", "planaria_worker.engine", "--config", str(tmp_path / "config.json")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_wrong_configuration_is_reported_in_one_line(tmp_path: Path) -> None:
    ended = run_engine(tmp_path, colour="red")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "colour: Unexpected" in ended.stderr


def test_an_engine_without_an_agent_ends_with_its_lease(tmp_path: Path) -> None:
    ended = run_engine(tmp_path, lease_seconds=0.0)
    assert ended.returncode == 3
    assert "lease_expired" in ended.stderr


def test_an_engine_that_cannot_be_prepared_says_why(
    cluster: EngineCluster, zygote: Zygote, tmp_path: Path
) -> None:
    spec = {**cluster.job.spec, "data": {**cluster.job.spec["data"], "path": "/nowhere/*.txt"}}
    files = JobFiles(spec=spec, data_path=tmp_path / "tokens", num_layers=7)
    with EngineCluster(tmp_path, files, zygote) as other:
        result = other.start("a")
        assert result.failure.reason == ErrorReason.ERROR_REASON_DATA_UNUSABLE
        assert "/nowhere/*.txt" in result.failure.message
        other.wait_until_dead("a")


def test_a_prepared_engine_reports_what_it_found(cluster: EngineCluster) -> None:
    prepared = cluster.start("a").prepared
    assert prepared.engine.state == EngineState.ENGINE_STATE_PARKED
    assert prepared.engine.data_address
    assert prepared.engine.store_address
    assert prepared.fingerprint["threads"] == "1"
    assert [measured.layer for measured in prepared.measured_layers] == list(range(7))
    assert all(measured.forward_seconds > 0 for measured in prepared.measured_layers)
    assert all(measured.forward_flops > 0 for measured in prepared.measured_layers[1:])
    assert prepared.peak_flops_per_second > 1e8


def test_findings_of_an_engine_are_reported_to_the_next_agent_too(cluster: EngineCluster) -> None:
    """The agent that it was told may have died with it: the coordinator asks again."""
    first = cluster.start("a")
    engine = cluster.engines["a"]
    engine.events.remove(next(e for e in engine.events if e.result == first))
    engine.send(
        Directive(
            directive_id=first.directive_id,
            job_id="job-1",
            generation=cluster.generation,
            engine_id=engine.engine_id,
            prepare=Prepare(),
        )
    )
    assert cluster.wait_for_result("a", first.directive_id) == first


def test_a_directive_takes_effect_once(cluster: EngineCluster) -> None:
    cluster.prepare("a", "b")
    cluster.train(PLAN)
    engine = cluster.engines["a"]
    cluster.generation += 1
    quiesce = Directive(
        directive_id="once",
        job_id="job-1",
        generation=cluster.generation,
        engine_id=engine.engine_id,
        quiesce=Quiesce(mode=Quiesce.MODE_IMMEDIATE),
    )
    engine.send(quiesce)
    first = cluster.wait_for_result("a", "once")
    engine.events.remove(next(e for e in engine.events if e.result == first))
    cluster.quiesce()
    engine.send(quiesce)
    assert cluster.wait_for_result("a", "once") == first


def test_a_plan_that_cannot_be_run_is_refused_by_name(cluster: EngineCluster) -> None:
    cluster.prepare("a", "b")
    cluster.quiesce(["a", "b"])
    wrong = {
        "are not 0..6 in order": [Pipeline([("a", 3), ("b", 3)], range(6))],
        "are not each of 0..5 once": [Pipeline([("a", 3), ("b", 4)], range(5))],
        "are not held in version 77": [Pipeline([("a", 7)], range(6))],
    }
    cluster.committed_steps = 77
    for complaint, plan in wrong.items():
        assert (
            complaint in cluster.ask("a", activate=cluster.activate_command(plan)).failure.message
        )


def test_a_layer_that_is_not_held_has_no_digest(cluster: EngineCluster) -> None:
    cluster.prepare("a", "b")
    cluster.train(PLAN)
    cluster.wait_until_finished("a", "b")
    failure = cluster.ask("a", digest_layers=DigestLayers(layers=[0, 6])).failure
    assert failure.reason == ErrorReason.ERROR_REASON_WRONG_STATE


def test_the_model_is_written_whole(
    cluster: EngineCluster, expected: ReferenceResult, tmp_path: Path
) -> None:
    """One engine writes it, and fetches from the other what it does not hold."""
    cluster.prepare("a", "b")
    cluster.train(PLAN)
    cluster.wait_until_finished("a", "b")
    there = [cluster.engines["b"].snapshot.data_address]
    sources = {layer: () if layer < 3 else there for layer in range(7)}
    exported = cluster.export("a", tmp_path / "model", sources).exported
    assert exported.bytes == sum(file.stat().st_size for file in (tmp_path / "model").iterdir())
    written = load_file(tmp_path / "model" / "model.safetensors")
    assert written.keys() == expected.parameters.keys()
    assert all(torch.equal(written[name], expected.parameters[name]) for name in written)


def test_a_model_that_cannot_be_written_names_the_folder(cluster: EngineCluster) -> None:
    cluster.prepare("a", "b")
    cluster.train(PLAN)
    cluster.wait_until_finished("a", "b")
    failure = cluster.export("a", Path("/proc/model"), dict.fromkeys(range(7), ())).failure
    assert failure.reason == ErrorReason.ERROR_REASON_OUTPUT_FAILED
    assert failure.metadata["path"] == "/proc/model"


def test_an_engine_that_stops_on_request_is_not_reported_lost(cluster: EngineCluster) -> None:
    cluster.prepare("a", "b")
    cluster.train(PLAN)
    cluster.wait_until_finished("a", "b")
    assert cluster.stop("b").HasField("stopped")
    cluster.wait_until_dead("b")
    assert cluster.engines["b"].process.returncode == 0
    cluster.quiesce(["a"])  # an answer after whatever it had to say of b
    assert not any(event.HasField("link_failed") for event in cluster.engines["a"].events)


def test_a_killed_engine_is_reported_by_its_peers(cluster: EngineCluster) -> None:
    cluster.prepare("a", "b")
    cluster.train(PLAN)
    cluster.engines["b"].kill()
    lost = cluster.wait_for(
        "loss seen by a",
        lambda: next(
            (e.link_failed for e in cluster.engines["a"].events if e.link_failed.job_id), None
        ),
    )
    assert lost.peer_engine_id == cluster.engines["b"].engine_id
    cluster.wait_for_state(EngineState.ENGINE_STATE_PARKED, "a")


def test_a_gradient_out_of_range_fails_the_job_everywhere(tmp_path: Path, zygote: Zygote) -> None:
    job = training_job(tmp_path / "job", num_steps=9, learning_rate=1e30, max_skipped_steps=0)
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        cluster.prepare("a", "b")
        cluster.train(PLAN)
        faults = [cluster.wait_for_fault(name) for name in ("a", "b")]
    for fault in faults:
        assert fault.fatal
        assert fault.failure.reason == ErrorReason.ERROR_REASON_GRADIENT_OUT_OF_RANGE
        assert fault.failure.metadata == faults[0].failure.metadata
        assert "layer" in fault.failure.message
