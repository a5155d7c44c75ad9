"""What a job may ask of training: each ends bit for bit where one plain loop ends.

Two pipelines that are cut differently; one engine is killed in the middle of a step.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import BEFORE, FAILED_STEP, WITHOUT_B, finish
from integration.engine.test_evaluation import HELD_OUT
from support.engines import checkpoints
from support.engines.checkpoints import beginning_from, checkpointed
from support.engines.cluster import EngineCluster
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import training_job
from support.engines.zygote import Zygote
from support.repository import ROOT

pytestmark = pytest.mark.integration

OWN_MODEL = {"import_path": "support.own_model:layers", "arguments": {"width": 24}}
TIED_OWN_MODEL = {**OWN_MODEL, "import_path": "support.own_model:tied_layers"}

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dropout": {"family": "gpt2", "dropout": 0.2},
    "checkpointing": {"activation_checkpointing": True},
    "checkpointing and dropout": {"activation_checkpointing": True, "dropout": 0.1},
    "bfloat16": {"dtype": "bfloat16"},
    "own model": {"own_model": OWN_MODEL},
    "own model in bfloat16": {
        "own_model": OWN_MODEL,
        "dtype": "bfloat16",
        "activation_checkpointing": True,
    },
    "own tied model": {"own_model": TIED_OWN_MODEL},
    "evaluation on another text": {
        "evaluation": {
            "every_steps": 3,
            "data": {"path": str(ROOT / "LICENSE")},
            "num_sequences": 14,
        }
    },
    "evaluation without dropout": {"evaluation": HELD_OUT, "family": "gpt2", "dropout": 0.2},
}
SLOW: Mapping[str, Mapping[str, Any]] = {
    "evaluation of a tied model": {
        "evaluation": HELD_OUT,
        "tie_word_embeddings": True,
        "activation_checkpointing": True,
    },
    "evaluation in bfloat16": {"evaluation": HELD_OUT, "dtype": "bfloat16", "family": "qwen3"},
}
TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "huggingface": {"family": "gpt2", "tie_word_embeddings": True, "dropout": 0.1},
    "safetensors": {"own_model": {**OWN_MODEL, "arguments": {"width": 24, "dropout": 0.2}}},
}
"""By the format in which the model is exported."""


def lose_b(cluster: EngineCluster) -> None:
    fatal = {"at": "backward", "action": "kill", "step": FAILED_STEP, "microbatch": 1}
    cluster.prepare("a", "b", "c", "d", failpoints={"b": [fatal]})
    cluster.train(BEFORE)
    cluster.wait_until_dead("b")


def export(
    cluster: EngineCluster, plan: Pipeline, path: Path, model_format: str = "huggingface"
) -> None:
    """The second stage writes the model, with the layers of the first."""
    (first, num_layers), (second, _) = plan.stages
    address = cluster.engines[first].snapshot.data_address
    sources = {layer: [address] if layer < num_layers else [] for layer in range(7)}
    result = cluster.export(second, path, sources, model_format)
    assert result.HasField("exported"), result


def loaded(path: Path, expected: ReferenceResult) -> GPT2LMHeadModel:
    model = GPT2LMHeadModel.from_pretrained(path).eval()
    for name, value in expected.parameters.items():
        assert torch.equal(model.get_parameter(name), value), name
    return model


@pytest.mark.parametrize(
    "options",
    [pytest.param(options, id=name) for name, options in OPTIONS.items()]
    + [pytest.param(options, id=name, marks=pytest.mark.slow) for name, options in SLOW.items()],
)
def test_the_result_is_that_of_one_plain_loop_whatever_fails(
    tmp_path: Path, zygote: Zygote, options: Mapping[str, Any]
) -> None:
    """The healthy pipeline finishes the step, and what is left of the other joins a new plan."""
    job = training_job(tmp_path / "job", num_steps=4, **options)
    expected = job.run_reference()
    assert expected.losses[-1] < expected.losses[0]
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        lose_b(cluster)
        reports = cluster.fence(["b"])
        assert reports["c"].kept_microbatches == BEFORE[1].microbatches
        cluster.roll_forward(reports)
        finishing = [Pipeline(BEFORE[1].stages, range(6), in_flight=[3, 4, 5, 0, 1, 2])]
        held = [layer.layer for layer in reports["a"].layers]
        cluster.place(finishing, followers={"a": held})
        cluster.wait_for_step("d", FAILED_STEP)
        cluster.recover(WITHOUT_B)
        finish(cluster, expected, WITHOUT_B)


def test_a_hugging_face_model_comes_back_to_hugging_face(tmp_path: Path, zygote: Zygote) -> None:
    """Trained from its config.json with tied embeddings and dropout, exported, and loaded again."""
    config = GPT2Config(
        vocab_size=256,
        n_positions=32,
        n_embd=32,
        n_layer=5,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    section = {"huggingface": json.loads(config.to_json_string())}
    job = training_job(tmp_path / "job", num_steps=2, own_model=section)
    expected = job.run_reference()
    plan = [Pipeline([("a", 3), ("b", 4)], range(6))]
    with EngineCluster(tmp_path / "engines", job.files, zygote) as cluster:
        cluster.prepare("a", "b")
        cluster.train(plan)
        finish(cluster, expected, plan)
        export(cluster, plan[0], tmp_path / "out")
    model = loaded(tmp_path / "out", expected)
    assert torch.equal(model.lm_head.weight, expected.parameters["transformer.wte.weight"])
    straight = GPT2LMHeadModel(config).eval()
    straight.load_state_dict(expected.parameters, strict=False)
    tokens = torch.arange(24).unsqueeze(0)
    assert torch.equal(model(tokens).logits, straight(tokens).logits)


@pytest.mark.slow
@pytest.mark.parametrize("model_format", TOGETHER)
def test_a_job_that_asks_for_everything_is_one_plain_loop(
    tmp_path: Path, zygote: Zygote, model_format: str
) -> None:
    """An engine is lost within a step; two others resume from the checkpoint, and export."""
    job = training_job(
        tmp_path / "job",
        num_steps=6,
        dtype="bfloat16",
        activation_checkpointing=True,
        evaluation=HELD_OUT,
        **TOGETHER[model_format],
    )
    expected = job.run_reference()
    files = checkpointed(job.files, tmp_path / "runs")
    with EngineCluster(tmp_path / "before", files, zygote) as cluster:
        lose_b(cluster)
        cluster.recover(WITHOUT_B)
        finish(cluster, expected, WITHOUT_B)
        layers = checkpoints.wait_until_written(cluster, 4)
        assert checkpoints.seal(cluster, "c", 4, layers).HasField("checkpoint_sealed")
    on_two = [Pipeline([("e", 5), ("f", 2)], [5, 4, 3, 2, 1, 0])]
    resumed = beginning_from(job.files, tmp_path / "runs")
    with EngineCluster(tmp_path / "after", resumed, zygote) as cluster:
        cluster.prepare("e", "f")
        cluster.train(on_two)
        finish(cluster, expected, on_two)
        assert cluster.base_steps == 4
        export(cluster, on_two[0], tmp_path / "out", model_format)
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == expected.parameters.keys()
    for name, value in expected.parameters.items():
        assert exported[name].dtype == torch.float32
        assert torch.equal(exported[name], value), name
    if model_format == "huggingface":
        loaded(tmp_path / "out", expected)
