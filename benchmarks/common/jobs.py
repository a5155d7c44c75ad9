"""The jobs that are measured: one that computes, one that is paced, one paced with brief steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from planaria.job import JobSpec

Computation = Literal["real", "paced", "brief"]
COMPUTATIONS: tuple[Computation, ...] = get_args(Computation)

SEQUENCE_LENGTH = 64
NUM_MICROBATCHES = 12
MICROBATCH_SIZE = 2

_REAL = {
    "family": "llama",
    "hidden_size": 128,
    "num_layers": 8,
    "num_heads": 4,
    "vocab_size": 256,
}
PACED_ARGUMENTS = {
    "num_blocks": 8,
    "hidden_size": 64,
    "forward_seconds": 0.006,
    "backward_seconds": 0.012,
}
_PACED = {"import_path": "benchmarks.common.paced:layers", "arguments": PACED_ARGUMENTS}
_BRIEF = {
    "import_path": "benchmarks.common.paced:layers",
    "arguments": {**PACED_ARGUMENTS, "forward_seconds": 0.0005, "backward_seconds": 0.001},
}
_MODELS: Mapping[Computation, Mapping[str, Any]] = {
    "real": _REAL,
    "paced": _PACED,
    "brief": _BRIEF,
}


def job(
    computation: Computation, text: Path, *, steps: int, seed: int, **resources: Any
) -> JobSpec:
    """Return a job that trains in reproducible mode and survives one node, in pipelines of two.

    Args:
        computation: what takes the time of a step.
        text: its data.
        steps: how many it trains.
        seed: of parameters and order of data.
        resources: further fields of the section.
    """
    return JobSpec.model_validate(
        {
            "name": f"{computation}-{seed}",
            "model": _MODELS[computation],
            "data": {"path": str(text), "tokenizer": "byte", "sequence_length": SEQUENCE_LENGTH},
            "training": {
                "steps": steps,
                "global_batch_size": NUM_MICROBATCHES * MICROBATCH_SIZE,
                "microbatch_size": MICROBATCH_SIZE,
                "seed": seed,
                "optimizer": {"name": "adamw", "learning_rate": 1e-3, "warmup_steps": 5},
            },
            "resilience": {"fault_tolerance": 1},
            "resources": {"min_nodes_per_pipeline": 2, **resources},
        }
    )
