"""A model of a user's own, by import path: planned when engines have built it, trained like any."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_model
from torch import nn

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from planaria.job import JobSpec
from planaria.models import Job
from support import own_model

pytestmark = pytest.mark.e2e

ARGUMENTS = {"width": 24}


def job_on(text: Path, num_nodes: int, **changes: object) -> JobSpec:
    return small_job(
        text,
        resources__min_nodes=num_nodes,
        resources__max_nodes=num_nodes,
        **{
            "model": {"import_path": "their_model:tied_layers", "arguments": ARGUMENTS},
            "training__steps": 6,
            **changes,
        },
    )


def digest(spec: JobSpec, folder: Path) -> str:
    return reference_run(spec, folder).digest


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder that has the model's module."""
    folder = tmp_path / "modules"
    folder.mkdir()
    shutil.copy(own_model.__file__, folder / "their_model.py")
    return folder


def test_a_model_by_import_path_trains_where_the_module_is_and_the_same(
    cluster: Cluster, text: Path, modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(modules))
    output = tmp_path / "out"
    spec = job_on(
        text,
        2,
        output={"path": str(output), "format": "safetensors"},
        resources__min_nodes_per_pipeline=2,
        resilience__fault_tolerance=0,
    )
    expected = digest(spec, tmp_path / "oracle")

    cluster.start(num_nodes=2, environment={"PYTHONPATH": str(modules)})
    job = cluster.wait_for_end(cluster.client.submit(spec).id)
    assert job.state == "SUCCEEDED", job.error
    assert job.final_digest == expected
    plan = cluster.client.job_plan(job.id).plan
    assert plan is not None
    assert len(plan.pipelines[0].stages) == 2
    assert sum(stage.num_layers for stage in plan.pipelines[0].stages) == 7
    model = nn.Sequential(*own_model.tied_layers(**ARGUMENTS))
    load_model(model, output / "model.safetensors")

    other = tmp_path / "other"
    other.mkdir()
    (other / "their_model.py").write_text((modules / "their_model.py").read_text() + "\n")
    cluster.start_node("node-2", {"PYTHONPATH": str(other)})
    cluster.wait_for_nodes(3)
    job = cluster.wait_for_end(cluster.client.submit(job_on(text, 3)).id)
    assert job.state == "SUCCEEDED", job.error
    other_source = "node-2 has another source of model.import_path than node-"
    assert [reason.startswith(other_source) for reason in refusals(cluster, job)] == [True]

    cluster.start_node("node-3")
    cluster.wait_for_nodes(4)
    job = cluster.wait_for_end(cluster.client.submit(job_on(text, 4)).id)
    assert job.state == "SUCCEEDED", job.error
    no_module = "node node-3: model.import_path: there is no module their_model"
    assert any(reason.startswith(no_module) for reason in refusals(cluster, job))


def refusals(cluster: Cluster, job: Job) -> list[str]:
    """Why nodes cannot serve a job."""
    events = cluster.client.events(job_id=job.id)
    return [e.message.partition(": ")[2] for e in events if e.type == "node_refused"]


@pytest.mark.slow
def test_a_layer_that_raises_costs_an_engine_and_one_that_always_does_is_named(
    cluster: Cluster, text: Path, modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the forward pass, then in the backward pass, and at last on every node alike."""
    monkeypatch.syspath_prepend(str(modules))
    spec = job_on(
        text,
        4,
        model={"import_path": "their_model:faulty_layers", "arguments": {"folder": str(modules)}},
        resources__min_nodes_per_pipeline=2,
        training__steps=60,
    )
    expected = digest(spec, tmp_path / "oracle")
    cluster.start(num_nodes=4, environment={"PYTHONPATH": str(modules)})
    job = cluster.client.submit(spec)
    for after_step, place in ((4, "forward"), (30, "backward")):
        cluster.wait_for_step(job.id, after_step)
        cluster.wait_for_state(job.id, "RUNNING")
        (modules / place).touch()
    end = cluster.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected
    lost = [e.message for e in cluster.client.events(job_id=job.id) if e.type == "engine_lost"]
    assert [message.partition(": ValueError: ")[2] for message in lost] == [
        "this layer had a fault forward",
        "this layer had a fault backward",
    ]

    job = cluster.client.submit(spec)
    cluster.wait_for_step(job.id, 4)
    (modules / "forward-always").touch()
    end = cluster.wait_for_end(job.id)
    assert end.error is not None
    assert end.error.reason == "STATE_LOST"
    assert "ValueError: this layer has a fault forward" in end.error.message


@pytest.mark.slow
def test_a_model_whose_passes_take_longer_than_the_progress_deadline_trains(
    text: Path, modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, too: before it is over, nothing but the warm-up says how long one takes."""
    monkeypatch.syspath_prepend(str(modules))
    model = {"import_path": "their_model:paced_layers", "arguments": {"sleep_seconds": 3.5}}
    spec = job_on(
        text,
        2,
        model=model,
        training__steps=1,
        training__global_batch_size=4,
        resources__min_nodes_per_pipeline=2,
        resilience__fault_tolerance=0,
    )
    expected = digest(spec, tmp_path / "oracle")
    with Cluster(tmp_path / "cluster", progress_deadline_seconds=2.0) as cluster:
        cluster.start(num_nodes=2, environment={"PYTHONPATH": str(modules)})
        end = cluster.wait_for_end(cluster.client.submit(spec).id)
        assert end.state == "SUCCEEDED", end.error
        assert end.final_digest == expected
        events = [event.type for event in cluster.client.events(job_id=end.id)]
    assert "engine_lost" not in events


@pytest.mark.slow
def test_a_tied_weight_outlives_the_hosts_of_either_end(
    cluster: Cluster, text: Path, modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of the last layer is killed, then that of the first one; two nodes are left."""
    monkeypatch.syspath_prepend(str(modules))
    spec = job_on(text, 5, resources__min_nodes_per_pipeline=2, training__steps=80)
    expected = digest(spec, tmp_path / "oracle")
    cluster.start(num_nodes=5, environment={"PYTHONPATH": str(modules)})
    job = cluster.client.submit(spec)
    for after_step, place in ((10, -1), (40, 0)):
        cluster.wait_for_step(job.id, after_step)
        cluster.wait_for_state(job.id, "RUNNING")
        plan = cluster.client.job_plan(job.id).plan
        assert plan is not None
        cluster.kill_node(plan.pipelines[0].stages[place].node_id)
    end = cluster.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == expected
    recoveries = cluster.client.job_recoveries(job.id)
    assert sum(len(recovery.nodes_lost) for recovery in recoveries) == 2
