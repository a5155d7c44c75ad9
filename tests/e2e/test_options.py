"""What a job may ask of training, from its file to its output, while nodes are killed."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.oracle.from_spec import reference_run
from benchmarks.oracle.reference import ReferenceResult
from planaria.job import JobSpec
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.layers.export import export_huggingface
from planaria_worker.models.state import LayerState
from support.small_reference import initial_states

pytestmark = pytest.mark.e2e

STEPS = 30


def job_on_five(text: Path, **changes: object) -> JobSpec:
    return small_job(
        text,
        training__steps=STEPS,
        resources__min_nodes=5,
        resources__min_nodes_per_pipeline=2,
        **changes,
    )


def kill_one(cluster: Cluster, spec: JobSpec) -> str:
    """Train it to the end, with a node killed in the middle; returns the job's id."""
    job = cluster.client.submit(spec)
    cluster.wait_for_step(job.id, 5)
    plan = cluster.client.job_plan(job.id).plan
    assert plan is not None
    cluster.kill_node(plan.pipelines[0].stages[-1].node_id)
    end = cluster.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    (recovery,) = cluster.client.job_recoveries(job.id)
    assert recovery.cause == "node_lost"
    return job.id


def written_by_transformers(folder: Path, config: GPT2Config) -> dict[int, LayerState]:
    """A folder as `save_pretrained` leaves it; returns what is in it, layer by layer."""
    model = ModelConfig.from_huggingface(config.to_dict())
    states = initial_states(model, seed=11)
    views = ((layer, state.layout.views(state.parameters)) for layer, state in states.items())
    export_huggingface(folder / "ours", model, views)
    GPT2LMHeadModel.from_pretrained(folder / "ours").save_pretrained(folder / "theirs")
    return states


@pytest.mark.slow
def test_a_hugging_face_model_with_everything_that_a_job_may_ask_for(
    five_nodes: Cluster, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[6] Tied embeddings, dropout, bfloat16, recomputed activations, clipping; from weights that
    transformers wrote to weights that it reads: bit for bit those of one plain loop."""
    config = GPT2Config(
        vocab_size=256,
        n_positions=64,
        n_embd=32,
        n_layer=5,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    states = written_by_transformers(tmp_path, config)
    spec = job_on_five(
        text,
        model={"huggingface": json.loads(config.to_json_string())},
        training__dtype="bfloat16",
        training__activation_checkpointing=True,
        init_from=str(tmp_path / "theirs"),
        output={"path": str(tmp_path / "out")},
    )
    monkeypatch.setattr(
        "benchmarks.oracle.reference.initial_state", lambda model, layer, seed: states[layer]
    )
    expected = plain_loop(spec, tmp_path)
    job_id = kill_one(five_nodes, spec)
    assert five_nodes.client.get_job(job_id).final_digest == expected.digest
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    for name, value in expected.parameters.items():
        assert torch.equal(model.get_parameter(name), value), name
    assert torch.equal(model.lm_head.weight, model.transformer.wte.weight)


def test_fast_mode_equals_one_plain_loop_up_to_rounding(
    five_nodes: Cluster, text: Path, tmp_path: Path
) -> None:
    """[1, 6] `reproducible: false`: a microbatch that was lost or counted twice would show."""
    spec = job_on_five(text, training__reproducible=False)
    expected = plain_loop(spec, tmp_path)
    job_id = kill_one(five_nodes, spec)
    steps = list(five_nodes.client.steps(job_id))
    assert [step.step for step in steps] == list(range(STEPS))
    assert [step.loss for step in steps] == pytest.approx(expected.losses, rel=1e-4)
    assert [step.gradient_norm for step in steps] == pytest.approx(expected.norms, rel=1e-2)


def plain_loop(spec: JobSpec, folder: Path) -> ReferenceResult:
    return reference_run(spec, folder / "oracle")
