"""What an engine does before anybody needs it: takes its device, opens its job, measures."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from planaria.api.worker.v1.report_pb2 import EngineSnapshot, MeasuredLayer, Prepared
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.job import Job, open_job
from planaria_worker.engine.layers.initial_state import InitialState
from planaria_worker.engine.layers.storage import job_initial_state
from planaria_worker.engine.numerics.pins import fingerprint, pin_numerics
from planaria_worker.engine.process import convert
from planaria_worker.engine.process.layer_timing import LayerCost
from planaria_worker.engine.process.warmup import peak_flops_per_second, warm_up
from planaria_worker.engine_config import EngineConfig
from planaria_worker.models.imported import ImportedModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What a warm engine knows."""

    config: EngineConfig
    job: Job
    initial_state: InitialState
    measured: Mapping[int, LayerCost]
    """The cost of each layer."""
    peak_flops_per_second: float

    @property
    def model_seconds(self) -> float:
        """What a microbatch takes in all layers, forward and backward."""
        passes = [cost.seconds for cost in self.measured.values()]
        return sum(each.forward_seconds + each.backward_seconds for each in passes)

    def answer(self, snapshot: EngineSnapshot) -> Prepared:
        """The answer to the directive that started the engine."""
        return Prepared(
            engine=snapshot,
            data_digest=self.config.data_digest,
            num_tokens=len(self.job.dataset.file.tokens),
            fingerprint=fingerprint(self.job.device.type, self.config.transport),
            measured_layers=[_measured(*item) for item in self.measured.items()],
            model_digest=self.job.model_digest,
            peak_flops_per_second=self.peak_flops_per_second,
            base=convert.base(self.initial_state.facts),
            ties_embeddings=self.job.model.tied is not None,
        )


def prepare(config: EngineConfig) -> Preparation:
    """Pins the arithmetic, reads the data and runs every kind of layer once.

    Raises:
        DataError: the data cannot be used.
        PlanariaError: the model by import path (INVALID_JOB) or what the job begins from
            (INIT_UNUSABLE) cannot be used; names this node.
    """
    pin_numerics()
    job = _open_job(config, _take_device(config))
    return Preparation(
        config=config,
        job=job,
        initial_state=job_initial_state(config, job),
        measured=warm_up(job, config.forward_flops),
        peak_flops_per_second=peak_flops_per_second(job),
    )


def _take_device(config: EngineConfig) -> torch.device:
    """The engine's accelerator; what computes from now on computes there."""
    if config.accelerator_kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", config.accelerator)
    torch.cuda.set_device(device)
    return device


def _open_job(config: EngineConfig, device: torch.device) -> Job:
    try:
        return open_job(
            config.job_id,
            config.job_spec,
            Path(config.data_path),
            device,
            Path(config.evaluation_data_path),
        )
    except ImportedModelError as error:
        node_id = config.engine_id.split("/")[1]
        raise PlanariaError(
            ErrorReason.INVALID_JOB,
            f"node {node_id}: {error}",
            {"field": str(error).partition(":")[0], "node_id": node_id},
        ) from error


def _measured(layer: int, cost: LayerCost) -> MeasuredLayer:
    return MeasuredLayer(
        layer=layer,
        forward_seconds=cost.seconds.forward_seconds,
        backward_seconds=cost.seconds.backward_seconds,
        parameter_bytes=cost.parameter_bytes,
        state_bytes=cost.state_bytes,
        activation_bytes=cost.activation_bytes,
        output_bytes=cost.output_bytes,
        forward_flops=cost.forward_flops,
    )
