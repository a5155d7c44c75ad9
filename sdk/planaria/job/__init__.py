"""The job file: what to train, on what, how, and how many failures to survive.

    job = load_job_file("examples/shakespeare.yaml")
    job.training.steps, job.num_microbatches

Every field but `model`, `data` and `training.steps` has a default. `planaria schema` prints the
JSON Schema that follows from these classes.
"""

from planaria.job.model import (
    MODEL_KINDS,
    FamilySpec,
    HuggingFaceSpec,
    ImportedSpec,
    ModelSpec,
)
from planaria.job.sections import (
    CheckpointSpec,
    EvaluationDataSpec,
    EvaluationSpec,
    MetricsSpec,
    OutputSpec,
    ResilienceSpec,
    ResourcesSpec,
    WandbSpec,
)
from planaria.job.spec import JobSpec
from planaria.job.training import DataSpec, OptimizerSpec, TrainingSpec

__all__ = [
    "MODEL_KINDS",
    "CheckpointSpec",
    "DataSpec",
    "EvaluationDataSpec",
    "EvaluationSpec",
    "FamilySpec",
    "HuggingFaceSpec",
    "ImportedSpec",
    "JobSpec",
    "MetricsSpec",
    "ModelSpec",
    "OptimizerSpec",
    "OutputSpec",
    "ResilienceSpec",
    "ResourcesSpec",
    "TrainingSpec",
    "WandbSpec",
]
