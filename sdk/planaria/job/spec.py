"""A whole job file: its sections, and what they must agree in."""

import hashlib
import json
import math
from typing import Any

from pydantic import Field, model_validator

from planaria._words import counted
from planaria.job.fields import Section, problem
from planaria.job.model import FamilySpec, ImportedSpec, ModelSpec
from planaria.job.sections import (
    CheckpointSpec,
    EvaluationSpec,
    MetricsSpec,
    OutputSpec,
    ResilienceSpec,
    ResourcesSpec,
)
from planaria.job.training import DataSpec, TrainingSpec

_MAX_MICROBATCHES = 16_384


class JobSpec(Section):
    """A training job."""

    name: str = Field(default="job", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """A name for people; it need not be unique."""
    model: ModelSpec
    """The model: a `family` and its sizes, an `import_path`, or a `huggingface` configuration."""
    data: DataSpec
    """The text to train on."""
    training: TrainingSpec
    """How long to train, and on how much at once."""
    resilience: ResilienceSpec = ResilienceSpec()
    """What the job must survive."""
    resources: ResourcesSpec = ResourcesSpec()
    """How many nodes the job may use."""
    init_from: str | None = Field(default=None, min_length=1)
    """Where training begins: a checkpoint, a folder of them (the newest), or a Hugging Face folder
    of safetensors, the same on every node; by default from the seed."""
    checkpoint: CheckpointSpec | None = None
    """Where and how often checkpoints are written; never by default."""
    evaluation: EvaluationSpec | None = None
    """What the model is evaluated on, and how often; never by default."""
    output: OutputSpec | None = None
    """Where the trained model goes; nowhere by default."""
    metrics: MetricsSpec | None = None
    """Where commands that follow the job write each step; nowhere by default."""
    scheduler: str = Field(default="default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """`default`, or the name of a connected custom scheduler."""

    @model_validator(mode="after")
    def _sections_agree(self) -> "JobSpec":
        if isinstance(self.model, FamilySpec):
            _check_vocabulary(self.data, self.model)
            _check_positions(self.data, self.model)
        for check in (_check_output, _check_microbatches, _check_replicas, _check_evaluation):
            check(self)
        return self

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches of one step, over all pipelines together."""
        return self.training.global_batch_size // self.training.microbatch_size

    @property
    def num_commits(self) -> int:
        """Number of commits of the whole job: a closing one evaluates the last parameters."""
        return self.training.steps + (self.evaluation is not None)

    def to_document(self) -> dict[str, Any]:
        """Return the job file as plain values, with every default filled in."""
        return self.model_dump(mode="json")

    def canonical_json(self) -> str:
        """Return JSON that is the same text for equal jobs."""
        return json.dumps(
            self.to_document(), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


def _check_vocabulary(data: DataSpec, model: FamilySpec) -> None:
    if data.tokenizer == "byte" and model.vocab_size < 256:
        raise problem(
            "model.vocab_size",
            f"{model.vocab_size} is too small for the byte tokenizer; it needs at least 256",
        )


def _check_positions(data: DataSpec, model: FamilySpec) -> None:
    longest = model.max_position_embeddings
    if longest is not None and data.sequence_length > longest:
        raise problem(
            "data.sequence_length",
            f"{data.sequence_length} is more than model.max_position_embeddings {longest}; "
            f"it must be at most {longest}",
        )


def _check_output(job: JobSpec) -> None:
    is_imported = isinstance(job.model, ImportedSpec)
    if is_imported and job.output is not None and job.output.format == "huggingface":
        raise problem(
            "output.format",
            "huggingface cannot hold a model by import_path; it must be safetensors",
        )


def _check_microbatches(job: JobSpec) -> None:
    # Plans name every microbatch.
    if job.num_microbatches > _MAX_MICROBATCHES:
        least = math.ceil(job.training.global_batch_size / _MAX_MICROBATCHES)
        raise problem(
            "training.microbatch_size",
            f"{job.training.microbatch_size} cuts a step into {job.num_microbatches} microbatches, "
            f"more than {_MAX_MICROBATCHES}; it must be at least {least}",
        )


def _check_replicas(job: JobSpec) -> None:
    replicas = job.resilience.fault_tolerance + 1
    if job.num_microbatches < replicas:
        raise problem(
            "training.global_batch_size",
            f"a step of {job.num_microbatches} microbatches cannot feed the {replicas} pipelines "
            f"of resilience.fault_tolerance {replicas - 1}; it must be at least "
            f"{replicas * job.training.microbatch_size}",
        )
    needed = replicas * job.resources.min_nodes_per_pipeline
    if job.resources.max_nodes is not None and job.resources.max_nodes < needed:
        raise problem(
            "resources.max_nodes",
            f"{counted(job.resources.max_nodes, 'node')} cannot hold the "
            f"{counted(replicas, 'pipeline')} of resilience.fault_tolerance {replicas - 1}; "
            f"it must be at least {needed}",
        )


def _check_evaluation(job: JobSpec) -> None:
    size = job.training.microbatch_size
    wanted = job.evaluation.num_sequences if job.evaluation is not None else None
    if wanted is not None and wanted % size:
        below = wanted - wanted % size
        nearby = f"{below} or {below + size}" if below else str(size)
        raise problem(
            "evaluation.num_sequences",
            f"{wanted} is no multiple of training.microbatch_size {size}; {nearby} would be",
        )
