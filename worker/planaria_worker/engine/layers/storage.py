"""What a job has on disk, as this node sees it: its initial state, its checkpoints."""

import json
from dataclasses import asdict
from pathlib import Path

from planaria.job import JobSpec
from planaria_common.errors import PlanariaError
from planaria_worker.engine.job import Job
from planaria_worker.engine.layers.checkpoint import CheckpointError
from planaria_worker.engine.layers.checkpoint.checkpointer import CheckpointPlan
from planaria_worker.engine.layers.checkpoint.errors import checkpoint_failed
from planaria_worker.engine.layers.checkpoint.seal import check_root
from planaria_worker.engine.layers.initial_state import (
    InitialState,
    InitialStateFacts,
    open_initial_state,
)
from planaria_worker.engine_config import EngineConfig


def job_initial_state(config: EngineConfig, job: Job) -> InitialState:
    """Find the initial state of a job, or use the facts that other engines have reported.

    Raises:
        PlanariaError: INIT_UNUSABLE; names this node.
    """
    spec = _spec(config)
    known = None
    if config.initial_path:
        known = InitialStateFacts(
            path=config.initial_path,
            step=config.initial_step,
            sha256=bytes.fromhex(config.initial_sha256),
            num_tokens=config.initial_tokens,
        )
    try:
        return open_initial_state(spec.init_from, known, job=job, model=_model(spec, job))
    except PlanariaError as error:
        raise _on_this_node(config, error) from None


def checkpoint_plan(
    config: EngineConfig, job: Job, initial_state: InitialState
) -> CheckpointPlan | None:
    """Where the checkpoints of a job go; None if it has none.

    Raises:
        PlanariaError: CHECKPOINT_FAILED: they cannot be written there; names this node.
    """
    spec = _spec(config)
    if spec.checkpoint is None:
        return None
    root = Path(spec.checkpoint.path)
    try:
        check_root(
            root,
            job_id=config.job_id,
            initial_step=initial_state.facts.step,
            suffix=config.engine_id.replace("/", "."),
        )
    except CheckpointError as error:
        raise _on_this_node(config, checkpoint_failed(error)) from None
    return CheckpointPlan(
        root=root,
        every_steps=spec.checkpoint.every_steps,
        keep=spec.checkpoint.keep,
        deadline_seconds=spec.checkpoint.deadline_seconds,
        num_steps=job.num_steps,
        initial_step=initial_state.facts.step,
        initial_tokens=initial_state.facts.num_tokens,
        tokens_per_step=job.tokens_per_step,
        job_id=config.job_id,
        job_digest=spec.digest(),
        seed=job.seed,
        data_digest=config.data_digest,
        model=_model(spec, job),
    )


def _spec(config: EngineConfig) -> JobSpec:
    return JobSpec.model_validate(json.loads(config.job_spec))


def _model(spec: JobSpec, job: Job) -> dict[str, object]:
    """The part of the model that its parameters depend on; dropout may differ between jobs."""
    if job.model_config is None:
        return spec.model.model_dump(mode="json")
    return {name: value for name, value in asdict(job.model_config).items() if name != "dropout"}


def _on_this_node(config: EngineConfig, error: PlanariaError) -> PlanariaError:
    node_id = config.engine_id.split("/")[1]
    return PlanariaError(
        error.reason, f"node {node_id}: {error}", {"node_id": node_id, **error.metadata}
    )
