"""What a job may ask of training, all of it together: lost, resumed on others, and exported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from benchmarks.oracle.reference import ReferenceResult
from integration.engine.scenarios import BEFORE, FAILED_STEP, WITHOUT_B
from integration.engine.test_evaluation import HELD_OUT
from support.engines import checkpoints
from support.engines.checkpoints import beginning_from, checkpointed
from support.engines.cluster import EngineCluster
from support.engines.small_plans import JobFiles, Pipeline
from support.engines.training_jobs import training_job
from support.engines.zygote import Zygote

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NUM_STEPS = 6
RESUMED_STEP = 4
ON_TWO = [Pipeline([("e", 5), ("f", 2)], [5, 4, 3, 2, 1, 0])]

JOBS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"family": "gpt2", "tie_word_embeddings": True, "dropout": 0.1},
    "own model": {
        "own_model": {
            "import_path": "support.own_model:layers",
            "arguments": {"width": 24, "dropout": 0.2},
        }
    },
}


@pytest.mark.parametrize(
    ("options", "model_format"),
    [(JOBS["gpt2"], "huggingface"), (JOBS["own model"], "safetensors")],
    ids=JOBS.keys(),
)
def test_a_job_that_asks_for_everything_is_one_plain_loop(
    tmp_path: Path, zygote: Zygote, options: Mapping[str, Any], model_format: str
) -> None:
    """An engine is lost within a step; what is written behind it goes on on two others."""
    job = training_job(
        tmp_path / "job",
        num_steps=NUM_STEPS,
        dtype="bfloat16",
        activation_checkpointing=True,
        evaluation=HELD_OUT,
        **options,
    )
    expected = job.run_reference()
    lose_and_write(tmp_path, checkpointed(job.files, tmp_path / "runs"), zygote, expected)
    resumed = beginning_from(job.files, tmp_path / "runs")
    with EngineCluster(tmp_path / "after", resumed, zygote) as cluster:
        cluster.prepare("e", "f")
        cluster.train(ON_TWO)
        cluster.wait_until_finished()
        assert cluster.base_steps == RESUMED_STEP
        assert cluster.digest(ON_TWO) == expected.digest
        assert cluster.losses() == expected.losses[RESUMED_STEP:]
        later = {step: x for step, x in expected.evaluation_losses.items() if step >= RESUMED_STEP}
        assert cluster.evaluation_losses() == later
        address = cluster.engines["e"].snapshot.data_address
        sources = {layer: [address] if layer < 5 else [] for layer in range(7)}
        result = cluster.export("f", tmp_path / "out", sources, model_format=model_format)
        assert result.HasField("exported"), result
    check_export(tmp_path / "out", expected)
    if model_format == "huggingface":
        model = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
        for name, value in expected.parameters.items():
            assert torch.equal(model.get_parameter(name), value), name


def lose_and_write(
    folder: Path, files: JobFiles, zygote: Zygote, expected: ReferenceResult
) -> None:
    """b is killed in a backward pass; the others end the job, and seal a checkpoint on the way."""
    fatal = {"at": "backward", "action": "kill", "step": FAILED_STEP, "microbatch": 1}
    with EngineCluster(folder / "before", files, zygote) as cluster:
        cluster.prepare("a", "b", "c", "d", failpoints={"b": [fatal]})
        cluster.train(BEFORE)
        cluster.wait_until_dead("b")
        cluster.recover(WITHOUT_B)
        cluster.wait_until_finished("a", "c", "d")
        assert cluster.digest(WITHOUT_B) == expected.digest
        assert cluster.losses() == expected.losses
        assert cluster.evaluation_losses() == expected.evaluation_losses
        layers = checkpoints.wait_until_written(cluster, RESUMED_STEP)
        assert checkpoints.seal(cluster, "c", RESUMED_STEP, layers).HasField("checkpoint_sealed")


def check_export(folder: Path, expected: ReferenceResult) -> None:
    """Each parameter once, in float32, though the job computes in bfloat16."""
    exported = load_file(folder / "model.safetensors")
    assert exported.keys() == expected.parameters.keys()
    for name, value in expected.parameters.items():
        assert exported[name].dtype == torch.float32
        assert torch.equal(exported[name], value), name
