"""What the coordinator reckons a microbatch to keep is what autograd keeps, byte for byte."""

import itertools

import pytest
import torch

from planaria.job import JobSpec
from planaria_common.model_config import ModelConfig
from planaria_common.model_sizes import layer_sizes
from planaria_worker.engine.process.layer_timing import SingleLayer
from planaria_worker.models.stage import hosted_layers
from planaria_worker.models.state import initial_state
from planaria_worker.profiling.measure import open_workload

OPTIONS = list(itertools.product(["float32", "bfloat16"], [0.0, 0.1], [False, True]))


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize(("dtype", "dropout", "checkpointing"), OPTIONS)
def test_activations_are_reckoned_exactly(
    family: str, dtype: str, dropout: float, checkpointing: bool
) -> None:
    grouped = {} if family == "gpt2" else {"num_key_value_heads": 2}
    sizes = {"hidden_size": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 256}
    spec = JobSpec.model_validate(
        {
            "model": {"family": family, "dropout": dropout, **sizes, **grouped},
            "data": {"path": "unused", "sequence_length": 20},
            "training": {
                "steps": 1,
                "microbatch_size": 2,
                "dtype": dtype,
                "activation_checkpointing": checkpointing,
            },
        }
    )
    job = open_workload(spec, torch.device("cpu"))
    reckoned = layer_sizes(
        ModelConfig.from_job_file(spec.model.model_dump()),
        2,
        20,
        dtype=spec.training.dtype,
        activation_checkpointing=checkpointing,
    )
    for layer, size in enumerate(reckoned):
        states = {
            hosted: initial_state(job.model, hosted, seed=0, compute_dtype=job.compute_dtype)
            for hosted in hosted_layers(job.model, layer, 1)
        }
        kept, sent = SingleLayer(job, layer, states).activation_and_output_bytes()
        assert (size.activation_bytes, size.output_bytes) == (kept, sent), size.name
