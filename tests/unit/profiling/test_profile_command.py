"""`planaria profile` as people type it."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from rich.console import Console

from planaria.cli.main import main
from planaria.job import JobSpec
from planaria_common.measurement import Measurement, MeasurementPlan
from planaria_planner import profile_cli
from planaria_planner.cost.profile_file import read_profile
from planaria_planner.display.profile_table import draw_measurement
from unit.profiling.samples import measurement

JOB = """
name: small
model: {family: llama, hidden_size: 512, num_layers: 6, num_heads: 8, vocab_size: 256}
data: {path: corpus.txt, sequence_length: 128}
training: {steps: 10, global_batch_size: 16, microbatch_size: 2}
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[MeasurementPlan]:
    """A profiler that answers at once, and what it was asked."""
    asked: list[MeasurementPlan] = []

    def measure(spec: JobSpec, plan: MeasurementPlan, tell: Callable[[float], None]) -> Measurement:
        assert spec.name == "small"
        tell(1.0)
        asked.append(plan)
        return measurement()

    class Point(EntryPoint):
        def load(self) -> object:
            return measure

    install(monkeypatch, Point("measure", "x:y", "planaria.profilers"))
    return asked


def install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(profile_cli, "entry_points", lambda **_: EntryPoints(points))


def test_an_analytic_profile_can_be_planned(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "p.json")
    assert main(["profile", "--accelerator", "H100", "--accelerators-per-node", "8",
                 job, "-o", out]) == 0  # fmt: skip
    capsys.readouterr()
    assert main(["plan", "--profile", out, "--nodes", "4", "--microbatches", "8",
                 "--fault-tolerance", "1", "--json"]) == 0  # fmt: skip
    plan = json.loads(capsys.readouterr().out)
    layers = [stage["num_layers"] for stage in plan["pipelines"][0]["stages"]]
    assert sum(layers) == 8


def test_json_is_the_file_and_nothing_else(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.json"
    assert main(["profile", "--accelerator", "a10", job, "-o", str(out), "--json"]) == 0
    assert capsys.readouterr().out == out.read_text()
    layers = read_profile(out).layers
    assert [layer.name for layer in layers] == [
        "embedding", *(f"block {n}" for n in range(6)), "head"
    ]  # fmt: skip
    assert sorted(layers[1].forward_seconds) == [1, 2, 4, 8]


def test_a_table_says_what_it_assumes(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--accelerator", "a100-80", "--efficiency", "compute=0.4", "--dtype", "bfloat16"]
    assert main(["profile", *options, job]) == 0
    out = capsys.readouterr().out
    assert "block 0 to 5" in out
    assert "a100-80 in bfloat16, at 40% of its FLOP/s, 80% of its memory's" in out


def test_a_hugging_face_configuration_can_be_profiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 8, "vocab_size": 1000,
    }))  # fmt: skip
    options = ["--accelerator", "h100", "--huggingface", str(config)]
    assert main(["profile", *options, "--sequence-length", "64", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["layers"]) == 5
    assert main(["profile", *options]) == 2
    assert capsys.readouterr().err == "error: --sequence-length: missing; --huggingface needs it\n"


def test_a_measured_profile_shows_spread_error_and_what_was_assumed(
    job: str, plans: list[MeasurementPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", job, "--passes", "3", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert plans == [MeasurementPlan(accelerator_kind="cpu", num_passes=3)]
    for expected in (
        "2 ms ±5%",
        "4 ms ±10%",
        "cost model: 120 ms for a step of 5 microbatches, 20.0% too little: measured 150 ms ±2%",
        "link between nodes: taken to be the same",
        "no stage has more than 1: planaria plan --max-stage-accelerators 1",
    ):
        assert expected in out


def test_a_busy_machine_is_noticed(
    job: str, plans: list[MeasurementPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    """The sample's passes spread by a sixth; on a busy machine by more than a fifth."""
    assert main(["profile", job]) == 0
    assert "warning" not in capsys.readouterr().out
    busy = [
        replace(layer, backward=replace(layer.backward, spread=0.5))
        for layer in measurement().layers
    ]
    out = io.StringIO()
    draw_measurement(
        replace(measurement(), layers=tuple(busy)),
        None,
        inter_node_is_given=True,
        out=Console(file=out),
    )
    assert "warning: the times vary widely" in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--accelerator", "h10"], "--accelerator: unknown accelerator 'h10'; did you mean h100"),
        (
            ["--accelerator", "t4", "--dtype", "bfloat16"],
            "--dtype: t4 does not compute in",
        ),
        (["--accelerator", "t4", "--efficiency", "compute=-1"], "--efficiency: compute=-1 is not"),
        (["--accelerator", "t4", "--efficiency", "speed=1"], "--efficiency: unknown part 'speed'"),
        (["--accelerator", "t4", "--efficiency", "compute"], "--efficiency: 'compute' is not"),
        (["--accelerator", "t4", "--passes", "3"], "--passes: is for measuring"),
        (["--accelerator", "t4", "--huggingface", "x"], "JOB.yaml: name a job file or"),
        (["--accelerator", "t4", "--inter-node-bytes-per-second", "-1"], "inter_node"),
        (["--accelerator", "t4", "--accelerators-per-node", "0"], "accelerators-per-node"),
        (["--dtype", "bfloat16"], "--dtype: needs --accelerator NAME"),
        (["--accelerator", "t4", "-o", "/no/such/folder/p.json"], "--output: /no/such/folder/p"),
    ],
)
def test_bad_options_are_reported_in_one_line(
    job: str, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", job, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert error in err


@pytest.mark.parametrize("mode", [[], ["--accelerator", "h100"]])
def test_a_missing_job_file_is_reported_in_one_line(
    mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "no-such.yaml", *mode]) == 2
    assert capsys.readouterr().err == (
        "error: no-such.yaml: cannot read the job file: No such file or directory\n"
    )


def test_without_the_worker_measuring_names_what_it_needs(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for points in ((), (EntryPoint("measure", "no_such_module:x", "planaria.profilers"),)):
        install(monkeypatch, *points)
        assert main(["profile", job]) == 1
        assert "pip install 'planaria[worker]'" in capsys.readouterr().err


def test_working_out_needs_neither_torch_nor_numpy(job: str) -> None:
    """A laptop with the base installation can plan a cluster it does not have."""
    code = """
import sys
for name in ("torch", "numpy", "numba", "scipy", "psutil", "structlog", "grpc_health"):
    sys.modules[name] = None
from planaria.cli.main import main
sys.exit(main(["profile", "--accelerator", "h200", sys.argv[1], "--json"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", code, job], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["kind"] == "ModelProfile"
