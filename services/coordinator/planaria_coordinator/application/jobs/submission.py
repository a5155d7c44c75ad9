"""From a job file to what the coordinator needs to know of it."""

from collections.abc import Mapping
from typing import Any

from planaria.errors import InvalidJobError
from planaria.job import JobSpec
from planaria.job_file import parse_job
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.domain.job.model_profile import estimated_layers, ties_embeddings
from planaria_coordinator.domain.job.requirements import Requirements


def read_job_spec(document: Mapping[str, Any]) -> JobSpec:
    """Check a job file.

    Raises:
        PlanariaError: INVALID_JOB, naming the first wrong field and, in words, every one.
    """
    try:
        return parse_job(document)
    except InvalidJobError as error:
        field = error.problems[0].field if error.problems else ""
        raise PlanariaError(ErrorReason.INVALID_JOB, str(error), {"field": field}) from error


def requirements_of(spec: JobSpec, job_secret: str) -> Requirements:
    """Return the fixed facts of a job.

    Raises:
        PlanariaError: INVALID_JOB when no such model can be built.
    """
    layers = estimated_layers(spec)  # first: it says what is wrong with the model
    checkpoint = spec.checkpoint
    return Requirements(
        job_spec=spec.canonical_json(),
        job_secret=job_secret,
        steps=spec.training.steps,
        evaluates=spec.evaluation is not None,
        num_microbatches=spec.num_microbatches,
        microbatch_size=spec.training.microbatch_size,
        fault_tolerance=spec.resilience.fault_tolerance,
        min_fault_tolerance=spec.resilience.min_fault_tolerance,
        unreachable_timeout_seconds=spec.resilience.unreachable_timeout_seconds,
        min_nodes=spec.resources.min_nodes,
        max_nodes=spec.resources.max_nodes,
        min_nodes_per_pipeline=spec.resources.min_nodes_per_pipeline,
        reproducible=spec.training.reproducible,
        data_path=spec.data.path,
        evaluation_data_path=spec.evaluation.data.path
        if spec.evaluation is not None and spec.evaluation.data is not None
        else "",
        output_path=spec.output.path if spec.output is not None else "",
        output_format=spec.output.format if spec.output is not None else "",
        init_from=spec.init_from or "",
        checkpoint_path=checkpoint.path if checkpoint is not None else "",
        checkpoint_every_steps=checkpoint.every_steps if checkpoint is not None else 0,
        checkpoint_deadline_seconds=checkpoint.deadline_seconds if checkpoint is not None else 0.0,
        ties_embeddings=ties_embeddings(spec),
        layers=layers,
    )
