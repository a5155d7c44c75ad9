"""The model FLOPs utilisation follows from what the plan's engines have measured."""

from dataclasses import replace

import pytest

from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.engines.outcome import MeasuredLayer
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.utilization import counted_flops, model_flops_utilization
from planaria_coordinator.domain.placement.placement import peak_of
from unit.coordinator.protocol.cluster import first_run
from unit.coordinator.protocol.state import NUM_LAYERS, NUM_MICROBATCHES
from unit.coordinator.simulation.world import running_world


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
    assert run.placement is not None
    peak = peak_of(run.placement.stage_engines, engines)
    placement = replace(run.placement, peak_flops_per_second=peak)
    return replace(run, engines=engines, placement=placement)


def test_utilization_is_model_operations_over_peak_operations() -> None:
    flops = 3 * 100 * NUM_LAYERS * NUM_MICROBATCHES
    utilization = model_flops_utilization(measured_run(1e3, 1e3, 2e3, 4e3), 1, step_seconds=2.0)
    assert utilization == pytest.approx(flops / (2.0 * 8e3))


def test_utilization_is_unknown_until_every_engine_has_measured() -> None:
    assert model_flops_utilization(measured_run(1e3, 1e3, 2e3, 0.0), 1, step_seconds=2.0) is None
    assert model_flops_utilization(first_run(1), 1, step_seconds=2.0) is None
    assert model_flops_utilization(measured_run(1e3, 1e3, 2e3, 4e3), 1, step_seconds=0.0) is None


def test_utilization_counts_a_plan_from_the_commit_that_activates_it() -> None:
    run = measured_run(1e3, 1e3, 2e3, 4e3)
    assert run.placement is not None
    candidate = replace(run.placement, generation=2, peak_flops_per_second=4e3)
    run = replace(run, candidate=candidate)
    of_old, of_new = (model_flops_utilization(run, k, step_seconds=2.0) for k in (1, 2))
    assert of_old is not None
    assert of_new == 2 * of_old


async def test_utilization_is_known_for_a_step_reported_after_a_loss() -> None:
    """The engines that are gone took part in it."""
    world = await running_world(4)
    members = world.begin_step()
    world.hold("quiesce")
    await world.kill_node("n3")
    world.pass_exchange(engine for engine in members if "/n3/" not in engine.id)
    await world.settle()
    await world.release()
    await world.train()
    await world.coordinator.flush()
    page = await world.coordinator.jobs.metrics(world.job_id, PageRequest())
    flops = 3 * sum(counted_flops(world.run)) * world.run.requirements.num_microbatches
    accelerators = [flops / (1e3 * (each.model_flops_utilization or 0)) for each in page.items]
    assert [each.generation for each in page.items] == [1, 1, 2]
    assert accelerators == pytest.approx([4, 4, 3])
