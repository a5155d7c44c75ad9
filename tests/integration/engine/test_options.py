"""What a job may ask of training: each ends bit for bit where one plain loop ends.

Two pipelines that are cut differently; one engine is killed in the middle of a step, the whole
pipeline finishes it, and what is left of the other joins a new plan.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from integration.engine.scenarios import BEFORE, FAILED_STEP, WITHOUT_B
from support.engines.cluster import EngineCluster
from support.engines.small_plans import Pipeline
from support.engines.training_jobs import TrainingJob, training_job
from support.engines.zygote import Zygote

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
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_result_is_that_of_one_plain_loop_whatever_fails(
    tmp_path: Path, zygote: Zygote, options: Mapping[str, Any]
) -> None:
    job = training_job(tmp_path / "job", num_steps=4, **options)
    lose_one_engine(tmp_path / "engines", job, zygote)


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
        cluster.wait_until_finished("a", "b")
        assert cluster.digest(plan) == expected.digest
        address = cluster.engines["a"].snapshot.data_address
        sources = {layer: [address] if layer < 3 else [] for layer in range(7)}
        result = cluster.export("b", tmp_path / "out", sources)
        assert result.HasField("exported"), result
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    for name, value in expected.parameters.items():
        assert torch.equal(model.get_parameter(name), value), name
    assert torch.equal(model.lm_head.weight, expected.parameters["transformer.wte.weight"])
    straight = GPT2LMHeadModel(config).eval()
    straight.load_state_dict(expected.parameters, strict=False)
    tokens = torch.arange(24).unsqueeze(0)
    assert torch.equal(model(tokens).logits, straight(tokens).logits)


def lose_one_engine(folder: Path, job: TrainingJob, zygote: Zygote) -> None:
    expected = job.run_reference()
    assert expected.losses[-1] < expected.losses[0]
    fatal = {"at": "backward", "action": "kill", "step": FAILED_STEP, "microbatch": 1}
    with EngineCluster(folder, job.files, zygote) as cluster:
        cluster.prepare("a", "b", "c", "d", failpoints={"b": [fatal]})
        cluster.train(BEFORE)
        cluster.wait_until_dead("b")
        reports = cluster.fence(["b"])
        assert reports["c"].kept_microbatches == BEFORE[1].microbatches
        cluster.roll_forward(reports)
        finishing = [Pipeline(BEFORE[1].stages, range(6), in_flight=[3, 4, 5, 0, 1, 2])]
        held = [layer.layer for layer in reports["a"].layers]
        for name, result in cluster.activate(finishing, followers={"a": held}).items():
            assert result.HasField("activated"), (name, result)
        cluster.wait_for_step("d", FAILED_STEP)
        cluster.recover(WITHOUT_B)
        cluster.wait_until_finished("a", "c", "d")
        assert cluster.digest(WITHOUT_B) == expected.digest
        assert cluster.losses() == expected.losses
