"""What is measured on this machine: bytes are exact, seconds are positive, the file can be used."""

import json
from pathlib import Path

import pytest
import torch

from planaria.cli.main import main
from planaria.job import JobSpec
from planaria.job_file import parse_job
from planaria_common.errors import PlanariaError
from planaria_common.measurement import MeasurementPlan
from planaria_common.model_sizes import layer_sizes
from planaria_planner.profile_cli import Profiler
from planaria_worker.profiling.layers import measure_layers
from planaria_worker.profiling.links import measure_link
from planaria_worker.profiling.measure import measure_job, open_workload
from planaria_worker.profiling.steps import measure_steps

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
GAP_BYTES = 32 * 20
"""What the gap behind a tensor takes at most: parameters, two moments and a sum of int64."""


def spec(**model: object) -> JobSpec:
    fields = {"family": "llama", "hidden_size": 64, "num_layers": 3, "num_heads": 4}
    return parse_job(
        {
            "model": {**fields, "vocab_size": 256, **model},
            "data": {"path": "not-needed.txt", "sequence_length": 16},
            "training": {"steps": 10, "global_batch_size": 8, "microbatch_size": 2},
        }
    )


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_measured_bytes_are_those_that_the_coordinator_plans_with(family: str) -> None:
    """`layer_sizes` follows from the configuration alone; only the gaps between tensors differ."""
    job = open_workload(spec(family=family), CPU)
    measured = measure_layers(job, num_passes=1)
    assert job.model_config is not None
    expected = layer_sizes(job.model_config, microbatch_size=2, sequence_length=16)
    for layer, size in zip(measured, expected, strict=True):
        assert layer.name == size.name
        assert layer.parameter_bytes == size.parameter_bytes
        assert layer.activation_bytes == size.activation_bytes, layer.name
        assert layer.output_bytes == size.output_bytes
        num_tensors = sum(len(layout.tensors) for layout in job.layouts)
        assert 0 <= layer.state_bytes - size.state_bytes < num_tensors * GAP_BYTES


def test_layers_that_are_alike_are_measured_once() -> None:
    job = open_workload(spec(), CPU)
    layers = measure_layers(job, num_passes=2)
    assert [layer.name for layer in layers] == [
        "embedding",
        "block 0",
        "block 1",
        "block 2",
        "head",
    ]
    assert layers[1].forward == layers[2].forward == layers[3].forward
    for layer in layers:
        assert min(layer.forward.median_seconds, layer.backward.median_seconds) > 0
        assert layer.update.median_seconds > 0
        assert layer.forward.spread >= 0


def test_steps_are_the_engines_own_and_have_at_most_so_many_microbatches() -> None:
    job = open_workload(spec(), CPU)
    steps = measure_steps(job, num_steps=2, max_microbatches=3)
    assert steps.num_microbatches == 3
    assert steps.step.median_seconds > 0
    assert measure_steps(job, num_steps=1, max_microbatches=99).num_microbatches == 4


def test_the_link_is_measured_between_two_processes() -> None:
    link = measure_link(CPU)
    assert link.description == "TCP over loopback"
    assert 1e6 < link.bytes_per_second < 1e12
    assert 0 < link.latency_seconds < 1


def test_the_worker_measures_as_the_command_asks() -> None:
    """The two parts do not import each other: here the types of both ends meet."""
    profiler: Profiler = measure_job
    with pytest.raises(PlanariaError, match=r"^model.head_dim: 15 is odd"):
        profiler(spec(head_dim=15), MeasurementPlan(), lambda _fraction: None)


def test_sequences_longer_than_the_model_are_reported_in_one_line() -> None:
    job = spec(family="gpt2")
    long = job.model_copy(update={"data": job.data.model_copy(update={"sequence_length": 4096})})
    with pytest.raises(PlanariaError, match=r"data.sequence_length: 4096 is more than"):
        measure_job(long, MeasurementPlan())


def test_a_layer_too_large_is_refused_before_it_takes_the_machine_down() -> None:
    """Rather than by the system, which ends whichever process it likes."""
    huge = spec(hidden_size=1 << 18, intermediate_size=1 << 20)
    with pytest.raises(PlanariaError, match=r"block 0 needs \d+ bytes .* are free here"):
        measure_job(huge, MeasurementPlan(accelerator_kind="cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_reported_in_one_line() -> None:
    with pytest.raises(PlanariaError, match="--device: cuda: torch finds no CUDA device"):
        measure_job(spec(), MeasurementPlan(accelerator_kind="cuda"))


def test_a_measured_profile_can_be_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way: a job file, the measurement, the profile, a plan."""
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(spec().to_document()))  # JSON is YAML
    out = str(tmp_path / "p.json")
    options = ["--passes", "2", "--check-steps", "1", "--device", "cpu"]
    assert main(["profile", str(job), "-o", out, *options]) == 0
    assert "cost model: " in capsys.readouterr().out
    assert main(["plan", "--profile", out, "--nodes", "3", "--microbatches", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_seconds"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_measured_where_there_is_one() -> None:
    told: list[float] = []
    measurement = measure_job(spec(), MeasurementPlan(num_passes=2, num_steps=1), told.append)
    assert told == sorted(told)
    assert told[-1] == 1
    assert measurement.accelerator_kind == "cuda"
    assert measurement.step is not None
