"""The model FLOPs utilisation follows from what the plan's engines have measured."""

from dataclasses import replace

import pytest

from planaria_coordinator.domain.outcome import MeasuredLayer
from planaria_coordinator.domain.run import JobRun
from planaria_coordinator.domain.utilization import model_flops_utilization
from unit.coordinator.protocol_cluster import first_run
from unit.coordinator.protocol_state import NUM_LAYERS, NUM_MICROBATCHES


def measured_run(*peaks: float) -> JobRun:
    """A run on four engines, whose layers take 100 operations a microbatch each."""
    run = first_run(1)
    layers = tuple(
        MeasuredLayer(layer=k, forward_seconds=1.0, backward_seconds=2.0, forward_flops=100)
        for k in range(NUM_LAYERS)
    )
    engines = {
        engine.id: replace(engine, measured_layers=layers, peak_flops_per_second=peak)
        for engine, peak in zip(run.engines.values(), peaks, strict=True)
    }
    return replace(run, engines=engines)


def test_it_is_the_models_operations_over_those_the_accelerators_could_do() -> None:
    flops = 3 * 100 * NUM_LAYERS * NUM_MICROBATCHES
    utilization = model_flops_utilization(measured_run(1e3, 1e3, 2e3, 4e3), step_seconds=2.0)
    assert utilization == pytest.approx(flops / (2.0 * 8e3))


def test_it_is_not_known_before_every_engine_has_measured() -> None:
    assert model_flops_utilization(measured_run(1e3, 1e3, 2e3, 0.0), step_seconds=2.0) is None
    assert model_flops_utilization(first_run(1), step_seconds=2.0) is None
    assert model_flops_utilization(measured_run(1e3, 1e3, 2e3, 4e3), step_seconds=0.0) is None
