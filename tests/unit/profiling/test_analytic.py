"""Profiles that are worked out: against numbers worked out by hand."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from planaria_common.errors import PlanariaError
from planaria_common.model_config import ModelConfig
from planaria_planner.cost.accelerators import (
    ACCELERATORS,
    Accelerator,
    find_accelerator,
    flops_per_second,
)
from planaria_planner.cost.analytic import (
    Cluster,
    Efficiency,
    Workload,
    analytic_profile,
    tensor_parallel_widths,
)
from planaria_planner.cost.cost_model import CostModel, Stage
from planaria_planner.cost.profile import Layer

MODEL = ModelConfig.create(
    family="llama", hidden_size=64, num_layers=1, num_heads=4, intermediate_size=192, vocab_size=256
)
WORKLOAD = Workload(config=MODEL, microbatch_size=2, sequence_length=8)
DEVICE = Accelerator(
    name="device",
    flops_per_second=MappingProxyType({"float32": 1e12}),
    memory_bytes=10**9,
    memory_bytes_per_second=1e20,  # arithmetic alone counts, unless a test says otherwise
    peer_bytes_per_second=1e9,
    node_links_bytes_per_second=2e9,
    network_bytes_per_second=1e8,
)
# 16 tokens; 4 attention matrices of 64 x 64 and 3 of 64 x 192; scores and their sums, 4 x 8 x 64.
BLOCK_FLOPS = 16 * (2 * (4 * 64 * 64 + 3 * 64 * 192) + 4 * 8 * 64)
# Matrices and two norms.
BLOCK_PARAMETERS = 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64
HIDDEN_BYTES = 16 * 64 * 4
# Per token, 4 bytes each: norms 6 x 64, attention 4 x 64, MLP 4 x 192, and 6 statistics.
BLOCK_ACTIVATION_BYTES = 16 * 4 * (6 * 64 + 4 * 64 + 4 * 192 + 6)
LATENCY = 1e-6


def cluster(accelerator: Accelerator = DEVICE, num: int = 4) -> Cluster:
    return Cluster(
        accelerator=accelerator,
        accelerators_per_node=num,
        link_latency_seconds=LATENCY,
        efficiency=Efficiency(compute=0.5, memory=0.25, link=0.8),
    )


def block(on: Cluster, workload: Workload = WORKLOAD) -> Layer:
    return analytic_profile(workload, on).layers[1]


def test_where_arithmetic_binds_a_block_takes_its_flops() -> None:
    layer = block(cluster(num=1))
    assert layer.forward_seconds == {1: pytest.approx(BLOCK_FLOPS / 0.5e12)}
    assert layer.backward_seconds == {1: pytest.approx(2 * BLOCK_FLOPS / 0.5e12)}


def test_where_memory_binds_a_block_takes_its_traffic() -> None:
    """Forward: weights, input, what is kept, output; backward twice that, and the sum."""
    layer = block(cluster(replace(DEVICE, memory_bytes_per_second=1e6), num=1))
    forward = 4 * BLOCK_PARAMETERS + 2 * HIDDEN_BYTES + BLOCK_ACTIVATION_BYTES
    gradients = 2 * BLOCK_PARAMETERS * (4 + 8)
    assert layer.activation_bytes == BLOCK_ACTIVATION_BYTES
    assert layer.forward_seconds[1] == pytest.approx(forward / 0.25e6)
    assert layer.backward_seconds[1] == pytest.approx((2 * forward + gradients) / 0.25e6)


def test_a_wider_stage_divides_the_work_and_pays_for_two_sums_in_a_block() -> None:
    """A sum over 2 moves each byte once over one link, over 4 one and a half times over two."""
    layer = block(cluster())
    alone = layer.forward_seconds[1]
    sum_of_2 = 2 * LATENCY + HIDDEN_BYTES / 0.8e9
    sum_of_4 = 4 * LATENCY + 1.5 * HIDDEN_BYTES / 1.6e9
    assert layer.forward_seconds[2] == pytest.approx(alone / 2 + 2 * sum_of_2)
    assert layer.forward_seconds[4] == pytest.approx(alone / 4 + 2 * sum_of_4)
    assert layer.backward_seconds[2] == pytest.approx(alone + 2 * sum_of_2)


def test_the_ends_sum_once_in_all() -> None:
    """The embedding on its way forward, the head on its way back."""
    embedding, _, head = analytic_profile(WORKLOAD, cluster()).layers
    one_sum = pytest.approx(2 * LATENCY + HIDDEN_BYTES / 0.8e9)
    assert embedding.forward_seconds[2] - embedding.forward_seconds[1] / 2 == one_sum
    assert embedding.backward_seconds[2] == embedding.backward_seconds[1] / 2
    assert head.forward_seconds[2] == head.forward_seconds[1] / 2
    assert head.backward_seconds[2] - head.backward_seconds[1] / 2 == one_sum


def test_hardware_is_the_data_sheets_at_its_efficiency() -> None:
    hardware = analytic_profile(WORKLOAD, cluster()).hardware
    assert hardware.intra_node_bytes_per_second == pytest.approx(0.8e9)
    assert hardware.inter_node_bytes_per_second == pytest.approx(0.8e8)
    assert hardware.node_kinds[0].accelerator_memory_bytes == 10**9
    given = replace(cluster(), inter_node_bytes_per_second=5e7)
    assert analytic_profile(WORKLOAD, given).hardware.inter_node_bytes_per_second == 5e7


@pytest.mark.parametrize(
    ("num_heads", "num_key_value_heads", "num_accelerators", "widths"),
    [(8, 8, 8, (1, 2, 4, 8)), (8, 2, 8, (1, 2)), (12, 12, 8, (1, 2, 4)), (8, 8, 6, (1, 2, 4))],
)
def test_stages_are_as_wide_as_heads_and_node_allow(
    num_heads: int, num_key_value_heads: int, num_accelerators: int, widths: tuple[int, ...]
) -> None:
    config = replace(MODEL, num_heads=num_heads, num_key_value_heads=num_key_value_heads)
    assert tensor_parallel_widths(config, num_accelerators) == widths


def test_a_known_model_on_a_known_machine_takes_what_people_see() -> None:
    """GPT-3 6.7B-like training on A100: 3 x 2 x parameters x tokens at half the peak, about."""
    config = ModelConfig.create(
        family="gpt2", hidden_size=4096, num_layers=32, num_heads=32, vocab_size=50257,
        max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip
    workload = Workload(config=config, microbatch_size=1, sequence_length=2048, dtype="bfloat16")
    machine = Cluster(accelerator=ACCELERATORS["a100-80"], accelerators_per_node=8)
    profile = analytic_profile(workload, machine)
    whole = Stage(first_layer=0, num_layers=34, node=0, accelerators=1)
    seconds = CostModel(profile).stage_seconds(0, whole, None)
    assert seconds == pytest.approx(6 * 6.65e9 * 2048 / (0.5 * 312e12), rel=0.15)


@pytest.mark.parametrize(
    ("name", "nearest"), [("h10", "h100"), ("A100", "a100-80"), ("mi300", "mi300x")]
)
def test_an_unknown_accelerator_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(
        PlanariaError, match=f"unknown accelerator '{name}'; did you mean.*{nearest}"
    ):
        find_accelerator(name)


def test_an_accelerator_like_no_other_names_all() -> None:
    with pytest.raises(PlanariaError, match=r"known: v100, .*mi300x"):
        find_accelerator("???")


def test_a_type_without_a_fast_path_names_those_there_are() -> None:
    with pytest.raises(PlanariaError, match="t4 does not compute in bfloat16; use float32"):
        flops_per_second(find_accelerator("T4"), "bfloat16")


@pytest.mark.parametrize("accelerator", ACCELERATORS.values(), ids=lambda a: a.name)
def test_the_table_is_in_the_units_it_says(accelerator: Accelerator) -> None:
    """TFLOP/s, GB and GB/s were not mixed up; networks are slower than links, links than memory."""
    assert 5e12 < accelerator.flops_per_second["float32"] < 2e14
    assert 5e13 < accelerator.flops_per_second.get("bfloat16", 1e14) < 5e15
    assert 10**10 < accelerator.memory_bytes < 10**12
    assert (
        accelerator.network_bytes_per_second
        < accelerator.peer_bytes_per_second
        <= accelerator.node_links_bytes_per_second
        < accelerator.memory_bytes_per_second
    )


@pytest.mark.parametrize("value", [0, -0.5, 1.5, float("nan")])
def test_an_efficiency_is_a_part_of_the_peak(value: float) -> None:
    with pytest.raises(PlanariaError, match=r"--efficiency: memory=.* is not more than 0"):
        Efficiency(memory=value)


def test_sequences_longer_than_the_model_are_refused() -> None:
    with pytest.raises(PlanariaError, match="sequence_length: 4096 is more than"):
        analytic_profile(replace(WORKLOAD, sequence_length=4096), cluster())
