"""A small job, as a user would submit it."""

from typing import Any


def job_document(**changes: Any) -> dict[str, Any]:
    """Return a job file; sections given are merged into it, but for another kind of model."""
    document: dict[str, Any] = {
        "name": "small",
        "model": {
            "family": "llama",
            "hidden_size": 32,
            "num_layers": 4,
            "num_heads": 4,
            "vocab_size": 256,
        },
        "data": {"path": "corpus.txt", "sequence_length": 16},
        "training": {"steps": 100, "global_batch_size": 8, "microbatch_size": 1},
        "resilience": {"fault_tolerance": 1},
        "resources": {"min_nodes_per_pipeline": 1},
    }
    for section, values in changes.items():
        is_merged = isinstance(values, dict) and "import_path" not in values
        document[section] = {**document.get(section, {}), **values} if is_merged else values
    return document
