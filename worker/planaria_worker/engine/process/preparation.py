"""The preparation of an engine: take its device, open its job, compile and measure every layer."""

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from planaria.api.worker.v1.report_pb2 import EngineSnapshot, MeasuredLayer, Prepared
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.job import Job, open_job
from planaria_worker.engine.layers.initial_state import InitialState
from planaria_worker.engine.layers.storage import job_initial_state
from planaria_worker.engine.numerics.pins import fingerprint, pin_numerics
from planaria_worker.engine.process import convert
from planaria_worker.engine.process.layer_timing import (
    LayerCost,
    PassSeconds,
    SingleLayer,
    kinds_of_layers,
)
from planaria_worker.engine_config import EngineConfig
from planaria_worker.models.imported import ImportedModelError
from planaria_worker.models.stage import hosted_layers
from planaria_worker.models.state import empty_state

_NUM_MEASURED = 3
_NUM_PRODUCTS = 8
_PRODUCT_SIZES = {"cpu": 512, "cuda": 8192}
"""Large enough for the full rate, and done in milliseconds."""


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
            fingerprint=fingerprint(self.job.device.type, self.config.transport),
            measured_layers=[_measured(*item) for item in self.measured.items()],
            model_digest=self.job.model_digest,
            peak_flops_per_second=self.peak_flops_per_second,
            initial_state=convert.initial_state(self.initial_state.facts),
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


def warm_up(job: Job, forward_flops: Sequence[int] = ()) -> dict[int, LayerCost]:
    """Runs every kind of layer and the update once, so that the first step is like any other.

    Layers take as long as their quickest pass: engines that start together disturb one another.

    Args:
        job: what is to be trained.
        forward_flops: operations of each layer's forward pass, if they are known: to count them
            torch imports its compiler, which takes a second.

    Returns:
        The cost of each layer; those that are alike are measured once.
    """
    kinds = kinds_of_layers(job)
    known = dict(enumerate(forward_flops)) if len(forward_flops) == job.num_layers else {}
    measured = {kind: _measure(job, kind, known.get(kind)) for kind in sorted(set(kinds))}
    _freeze()
    return {layer: measured[kind] for layer, kind in enumerate(kinds)}


def _measure(job: Job, layer: int, forward_flops: int | None) -> LayerCost:
    device, dtype = str(job.device), job.compute_dtype
    states = {
        hosted: empty_state(job.layouts[hosted], device=device, compute_dtype=dtype)
        for hosted in hosted_layers(job.model, layer, 1)
    }
    alone = SingleLayer(job, layer, states)
    alone.run()
    passes = [alone.run() for _ in range(_NUM_MEASURED)]
    alone.update()  # compiles what a commit needs
    activation_bytes, output_bytes = alone.activation_and_output_bytes()
    return LayerCost(
        seconds=PassSeconds(
            forward_seconds=min(each.forward_seconds for each in passes),
            backward_seconds=min(each.backward_seconds for each in passes),
        ),
        parameter_bytes=alone.parameter_bytes,
        state_bytes=alone.state_bytes,
        activation_bytes=activation_bytes,
        output_bytes=output_bytes,
        forward_flops=alone.forward_flops() if forward_flops is None else forward_flops,
    )


def peak_flops_per_second(job: Job) -> float:
    """The best rate of some products of large matrices: what utilisation is measured against."""
    size = _PRODUCT_SIZES[job.device.type]
    left, right = torch.ones((2, size, size), dtype=job.compute_dtype, device=job.device)
    seconds = min(_product_seconds(left, right) for _ in range(_NUM_PRODUCTS))
    return 2 * size**3 / seconds


def _product_seconds(left: Tensor, right: Tensor) -> float:
    start = time.perf_counter()
    torch.mm(left, right)
    if left.device.type == "cuda":
        torch.cuda.synchronize(left.device)
    return time.perf_counter() - start


def _freeze() -> None:
    """A collection with torch loaded takes 0.2 to 0.8 s: the modules are never garbage."""
    gc.collect()
    gc.freeze()
