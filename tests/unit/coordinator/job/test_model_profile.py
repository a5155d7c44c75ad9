"""The profile of a model that the planner gets: measured where it can be, else estimated."""

from dataclasses import replace

import pytest

from planaria.job import JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.jobs.submission import requirements_of
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.engines.outcome import MeasuredLayer
from planaria_coordinator.domain.job.model_profile import measured_layers, model_profile
from planaria_coordinator.domain.job.requirements import NodeFacts
from unit.coordinator.simulation.job_documents import job_document

NODE = NodeFacts(
    node_id="a",
    num_accelerators=1,
    accelerator_kind="cpu",
    accelerator_memory_bytes=1 << 30,
)


def test_measurements_replace_estimates() -> None:
    """The median of the engines counts."""
    layers = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    engines = [
        Engine(
            id=f"e{k}",
            node_id=f"n{k}",
            accelerator=0,
            measured_layers=tuple(
                MeasuredLayer(layer=layer, forward_seconds=k * f, backward_seconds=2 * k * f)
                for layer, f in enumerate((0.1, 0.2, 0.2, 0.2, 0.2, 0.3))
            ),
        )
        for k in (1, 2, 3)
    ]
    measured = measured_layers(layers, engines)
    assert [layer.forward_seconds for layer in measured] == pytest.approx(
        [0.2, 0.4, 0.4, 0.4, 0.4, 0.6]
    )
    assert measured[1].state_bytes == layers[1].state_bytes


def test_as_long_as_a_layer_is_not_measured_all_times_stay_estimates() -> None:
    layers = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    only_blocks = Engine(
        id="e",
        node_id="n",
        accelerator=0,
        measured_layers=(MeasuredLayer(layer=1, forward_seconds=9.0, backward_seconds=9.0),),
    )
    assert measured_layers(layers, [only_blocks]) == layers


def test_a_model_for_large_machines_is_not_refused_for_being_slow_on_small_ones() -> None:
    """The planner takes no microbatch of hours; before measuring only proportions matter."""
    document = job_document(
        model={"hidden_size": 16_384, "num_layers": 120, "num_heads": 128},
        data={"sequence_length": 2048},
    )
    layers = requirements_of(JobSpec.model_validate(document), "secret").layers
    seconds = [layer.forward_seconds + layer.backward_seconds for layer in layers]
    assert 1 < sum(seconds) < 100
    assert seconds[1] == seconds[2] > seconds[0]


def test_a_model_for_fast_links_is_not_refused_for_being_slow_on_slow_ones() -> None:
    """Six trillion parameters would take hours over the links of a model of millions."""
    small = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    document = job_document(model={"hidden_size": 49_152, "num_layers": 200, "num_heads": 128})
    huge = requirements_of(JobSpec.model_validate(document), "secret").layers
    bandwidths = []
    for layers in (small, huge):
        hardware = model_profile(layers, 1, [NODE]).hardware
        moved_bytes = sum(layer.parameter_bytes + layer.output_bytes for layer in layers)
        assert moved_bytes / hardware.inter_node_bytes_per_second <= 60 * (1 + 1e-9)
        assert hardware.intra_node_bytes_per_second > hardware.inter_node_bytes_per_second
        bandwidths.append(hardware.inter_node_bytes_per_second)
    assert bandwidths[0] == 1e9 < bandwidths[1]


def test_the_kind_of_node_that_holds_most_comes_first() -> None:
    """In nodes of the first kind the planner counts how many hold the model."""
    layers = requirements_of(JobSpec.model_validate(job_document()), "secret").layers
    large = replace(NODE, node_id="b", accelerator_memory_bytes=1 << 35)
    kinds = model_profile(layers, 1, [NODE, large]).hardware.node_kinds
    assert [kind.accelerator_memory_bytes for kind in kinds] == [1 << 35, 1 << 30]


def test_a_model_that_cannot_be_built_is_refused_naming_the_field() -> None:
    document = job_document(model={"hidden_size": 36, "num_heads": 12, "head_dim": 3})
    with pytest.raises(PlanariaError) as caught:
        requirements_of(JobSpec.model_validate(document), "secret")
    assert caught.value.reason is ErrorReason.INVALID_JOB
    assert caught.value.metadata["field"] == "model.head_dim"
