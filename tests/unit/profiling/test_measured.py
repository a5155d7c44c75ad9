"""Profiles that are made of a measurement."""

from dataclasses import replace

import pytest

from planaria_planner.cost.measured import check_step, measured_profile
from unit.profiling.samples import measurement


def test_medians_become_seconds_on_one_accelerator() -> None:
    profile = measured_profile(measurement(), microbatch_size=2)
    block = profile.layers[1]
    assert (block.forward_seconds, block.backward_seconds) == ({1: 2e-3}, {1: 4e-3})
    assert (block.parameter_bytes, block.state_bytes) == (400, 2400)
    assert (block.activation_bytes, block.output_bytes) == (1000, 64)
    assert profile.microbatch_size == 2


def test_the_machine_that_measured_is_the_kind_of_node() -> None:
    """Its name can be said in `--nodes NAME=8`."""
    (kind,) = measured_profile(measurement(), microbatch_size=2).hardware.node_kinds
    assert (kind.name, kind.accelerators_per_node) == ("nvidia-h200-x", 2)
    cpu = replace(measurement(), accelerator_kind="cpu")
    (kind,) = measured_profile(cpu, microbatch_size=2, accelerators_per_node=4).hardware.node_kinds
    assert (kind.name, kind.accelerators_per_node) == ("cpu", 4)


def test_the_link_between_nodes_is_the_one_within_unless_it_is_given() -> None:
    hardware = measured_profile(measurement(), microbatch_size=2).hardware
    assert hardware.intra_node_bytes_per_second == hardware.inter_node_bytes_per_second == 1e9
    hardware = measured_profile(
        measurement(), microbatch_size=2, inter_node_bytes_per_second=2e8
    ).hardware
    assert hardware.inter_node_bytes_per_second == 2e8


def test_the_check_compares_b_times_m_with_the_step() -> None:
    """Four layers of 6 ms and five microbatches: 120 ms, where the step took 150."""
    check = check_step(measured_profile(measurement(), microbatch_size=2), measurement())
    assert check is not None
    assert check.predicted_seconds == pytest.approx(0.12)
    assert check.relative_error == pytest.approx(-0.2)
    assert check.update_seconds == pytest.approx(4e-3)


def test_without_steps_there_is_no_check() -> None:
    without = replace(measurement(), step=None)
    assert check_step(measured_profile(without, microbatch_size=2), without) is None
