"""What must be true on a node before an engine starts: the job's data is there and readable."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from planaria.job import ImportedSpec, JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.model_config import ModelConfig
from planaria_worker.engine.data.dataset import Dataset, open_dataset
from planaria_worker.engine.data.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """A job's data on this node.

    Attributes:
        path: the token file.
        evaluation_path: that of `evaluation.data`; None: the job has none.
        digest: names the contents of all data and of the tokenizer; equal on every node of a job.
        num_tokens: tokens in the file.
    """

    path: Path
    evaluation_path: Path | None
    digest: str
    num_tokens: int


def prepare_data(job_spec: str, cache_dir: Path, node_id: str) -> PreparedData:
    """Make the job's token file, or find the one that an earlier engine left.

    Raises:
        JobFailedError: DATA_UNUSABLE, naming this node and the path.
    """
    spec = JobSpec.model_validate(json.loads(job_spec))
    dataset = _open(spec, "data.path", spec.data.path, cache_dir, node_id)
    path = dataset.file.path
    evaluation_path, digest = None, path.stem
    if spec.evaluation is not None and spec.evaluation.data is not None:
        pattern = spec.evaluation.data.path
        held_out = _open(spec, "evaluation.data.path", pattern, cache_dir, node_id)
        evaluation_path = held_out.file.path
        digest = hashlib.sha256(f"{digest} {evaluation_path.stem}".encode()).hexdigest()[:32]
    return PreparedData(
        path=path,
        evaluation_path=evaluation_path,
        digest=digest,
        num_tokens=len(dataset.file.tokens),
    )


def _open(spec: JobSpec, field: str, pattern: str, cache_dir: Path, node_id: str) -> Dataset:
    try:
        return open_dataset(
            pattern=pattern,
            tokenizer=spec.data.tokenizer,
            cache_dir=cache_dir,
            sequence_length=spec.data.sequence_length,
            vocab_size=_vocab_size(spec),
            field=field,
        )
    except DataError as error:
        raise PlanariaError(
            ErrorReason.DATA_UNUSABLE,
            f"node {node_id}: {error}",
            {"node_id": node_id, "path": pattern},
        ) from None


def _vocab_size(spec: JobSpec) -> int | None:
    """None for a model by import path: its engine builds it, and knows."""
    if isinstance(spec.model, ImportedSpec):
        return None
    return ModelConfig.from_job_file(spec.model.model_dump()).vocab_size
