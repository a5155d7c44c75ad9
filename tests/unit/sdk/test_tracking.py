"""A job's steps reach TensorBoard and W&B once each, however often the tracker is started."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from planaria import Client
from planaria.cli.main import main
from planaria.errors import ConflictError
from planaria.job_file import load_job_file, parse_job
from planaria.tracking import require_installed, track
from unit.sdk.fake_api import Answer, FakeApi
from unit.sdk.samples import job, step_metrics

SPEC: dict[str, Any] = {
    "model": {"import_path": "m:layers"},
    "data": {"path": "x"},
    "training": {"steps": 3},
}


def a_step(step: int) -> dict[str, Any]:
    return step_metrics(step, loss=5.0 - step, model_flops_utilization=0.5 if step else None)


def evaluated(step: int, loss: float | None) -> dict[str, Any]:
    return {**a_step(step), "loss": loss, "evaluation_loss": 6.0 - step}


def pages(coordinator: FakeApi, metrics: dict[str, Any]) -> None:
    """Three steps on two pages, the last of them stored after the job's end."""
    spec = {**SPEC, "metrics": metrics}
    running = job(spec=spec, state="RUNNING", step=1, steps=3)
    ended = job(spec=spec, state="SUCCEEDED", step=3, steps=3)
    coordinator.answer(
        "GET /jobs/job-1", *(Answer(body=body) for body in (running, running, ended))
    )
    coordinator.answer(
        "GET /jobs/job-1/metrics",
        Answer(body={"metrics": [a_step(0)], "next_page_token": "after-0"}),
        Answer(body={"metrics": [a_step(1)], "next_page_token": ""}),
        Answer(body={"metrics": [a_step(1), a_step(2)], "next_page_token": ""}),
    )


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(e.step, float(e.tensor_proto.float_val[0])) for e in events.Tensors(name)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.client.time.sleep", lambda _seconds: None)


def test_tensorboard_has_every_step_once_after_any_number_of_starts(
    coordinator: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        pages(coordinator, {"tensorboard": str(tmp_path)})
        assert main(["jobs", "track", "job-1"]) == 0
        assert capsys.readouterr().out == "3 steps written\n"
    assert scalars(tmp_path / "job-1", "loss") == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert scalars(tmp_path / "job-1", "model_flops_utilization") == [(1, 0.5), (2, 0.5)]


def test_the_evaluation_after_the_last_step_is_tracked_but_is_no_training_step(
    coordinator: FakeApi, tmp_path: Path
) -> None:
    """The job has all its steps before it: its last row comes later."""
    evaluation = {"fraction": 0.1, "every_steps": 2}
    spec = {**SPEC, "evaluation": evaluation, "metrics": {"tensorboard": str(tmp_path)}}
    body = job(spec=spec, state="RUNNING", step=3, steps=3)
    coordinator.answer("GET /jobs/job-1", Answer(body=body))
    rows = [evaluated(0, 5.0), a_step(1), evaluated(2, 3.0)]
    coordinator.answer(
        "GET /jobs/job-1/metrics",
        Answer(body={"metrics": rows, "next_page_token": ""}),
        Answer(body={"metrics": [*rows, evaluated(3, None)], "next_page_token": ""}),
    )
    with Client() as client:
        assert track(client, client.get_job("job-1")) == 4
    assert scalars(tmp_path / "job-1", "loss") == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert scalars(tmp_path / "job-1", "evaluation_loss") == [(0, 6.0), (2, 4.0), (3, 3.0)]


def test_a_wandb_run_goes_on_where_it_ended(
    coordinator: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[int, float]] = []
    opened: list[dict[str, Any]] = []

    def init(**options: Any) -> SimpleNamespace:
        opened.append(options)
        return SimpleNamespace(
            step=1,
            log=lambda values, step: logged.append((step, values["loss"])),
            finish=lambda: logged.append((-1, 0.0)),
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    pages(coordinator, {"wandb": {"project": "worms"}})
    with Client() as client:
        assert track(client, client.get_job("job-1")) == 3
    assert logged == [(1, 4.0), (2, 3.0), (-1, 0.0)]
    assert (opened[0]["project"], opened[0]["id"], opened[0]["resume"]) == (
        "worms",
        "job-1",
        "allow",
    )


def test_the_real_wandb_keeps_every_step_without_a_network(
    coordinator: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is missing: pip install 'planaria[wandb]'")
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    pages(coordinator, {"wandb": {"project": "worms"}})
    with Client() as client:
        assert track(client, client.get_job("job-1")) == 3
    wandb.teardown()
    (records,) = tmp_path.glob("wandb/offline-run-*-job-1/run-job-1.wandb")
    losses = re.findall(rb"\x04loss\x82\x01.([0-9.]+)", records.read_bytes())
    assert {float(loss) for loss in losses} == {5.0, 4.0, 3.0}


def test_a_package_that_is_not_installed_is_named_before_the_job_is_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    spec = parse_job({**SPEC, "metrics": {"wandb": {"project": "worms"}}})
    with pytest.raises(ConflictError, match=r"metrics.wandb: .* pip install 'planaria\[wandb\]'"):
        require_installed(spec.metrics)


def test_the_folder_is_taken_from_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "model: {import_path: 'm:layers'}\ndata: {path: x}\ntraining: {steps: 3}\n"
        "metrics: {tensorboard: runs}\n"
    )
    metrics = load_job_file(tmp_path / "job.yaml").metrics
    assert metrics is not None
    assert metrics.tensorboard == str(tmp_path / "runs")
