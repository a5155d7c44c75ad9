"""What must be true on a node before an engine starts: the job's data is there and readable."""

import json
from dataclasses import dataclass
from pathlib import Path

from planaria.job import ImportedSpec, JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.model_sizes import ModelConfig
from planaria_worker.engine.data.dataset import open_dataset
from planaria_worker.engine.data.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """A job's data on this node.

    Attributes:
        path: the token file.
        digest: names the contents of the data and of the tokenizer; equal on every node of a job.
        num_tokens: tokens in the file.
    """

    path: Path
    digest: str
    num_tokens: int


def prepare_data(job_spec: str, cache_dir: Path, node_id: str) -> PreparedData:
    """Make the job's token file, or find the one that an earlier engine left.

    Raises:
        JobFailedError: DATA_UNUSABLE, naming this node and the path.
    """
    spec = JobSpec.model_validate(json.loads(job_spec))
    try:
        dataset = open_dataset(
            pattern=spec.data.path,
            tokenizer=spec.data.tokenizer,
            cache_dir=cache_dir,
            sequence_length=spec.data.sequence_length,
            vocab_size=_vocab_size(spec),
        )
    except DataError as error:
        raise PlanariaError(
            ErrorReason.DATA_UNUSABLE,
            f"node {node_id}: {error}",
            {"node_id": node_id, "path": spec.data.path},
        ) from None
    return PreparedData(
        path=dataset.file.path,
        digest=dataset.file.path.stem,
        num_tokens=len(dataset.file.tokens),
    )


def _vocab_size(spec: JobSpec) -> int | None:
    """None for a model by import path: its engine builds it, and knows."""
    if isinstance(spec.model, ImportedSpec):
        return None
    return ModelConfig.from_job_file(spec.model.model_dump()).vocab_size
