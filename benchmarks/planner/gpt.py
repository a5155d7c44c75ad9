"""GPT-like profiles for the benchmarks: an embedding, equal decoder blocks, a head.

The proportions were measured with torch on one core (hidden 1024, 16 heads, 256 tokens, vocabulary
50,257; tensor-parallel shards without their sums), in units of a block's forward pass on one
accelerator. Variant (b) makes every layer distinct by up to 2 %. Both are committed in `profiles/`
with 200 layers and nodes of 8 accelerators; this file, run, writes them. Smaller models are the
same with fewer blocks, smaller nodes the same with fewer accelerators.
"""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

from planaria_planner.cost.profile import Hardware, Layer, ModelProfile, NodeKind, widths_up_to
from planaria_planner.cost.profile_file import format_profile, read_profile

PROFILES = Path(__file__).parent / "profiles"
MOST_LAYERS, MOST_ACCELERATORS = 200, 8

BLOCK_FORWARD_SECONDS = 4e-3
# Forward and backward of an embedding, a block and a head on 1, 2, 4 and 8 accelerators.
PROPORTIONS = {
    "embedding": ((0.0125, 0.0075, 0.0072, 0.0068), (1.376, 0.685, 0.396, 0.109)),
    "block": ((1.0, 0.485, 0.252, 0.136), (2.099, 1.012, 0.523, 0.278)),
    "head": ((4.36, 2.179, 1.293, 0.718), (9.685, 4.641, 2.230, 1.006)),
}
PARAMETERS = {"embedding": 51_725_312, "block": 12_596_224, "head": 51_465_216}
STATE_BYTES_PER_PARAMETER = 16
HIDDEN_BYTES = 1024 * 256 * 4


def gpt_profile(num_layers: int, *, accelerators: int = 1, distinct: bool = False) -> ModelProfile:
    """Return variant (a), or (b) where `distinct`, with `num_layers` layers in all."""
    whole = read(distinct)
    kind = replace(whole.hardware.node_kinds[0], accelerators_per_node=accelerators)
    return replace(
        whole,
        hardware=replace(whole.hardware, node_kinds=(kind,)),
        layers=(*whole.layers[: num_layers - 1], whole.layers[-1]),
    )


@cache
def read(distinct: bool) -> ModelProfile:
    """Return the committed profile of variant (a) or (b)."""
    return read_profile(file_of(distinct))


def file_of(distinct: bool) -> Path:
    return PROFILES / ("gpt-distinct.json" if distinct else "gpt-equal.json")


def made(*, distinct: bool) -> ModelProfile:
    """Return the profile that is committed."""
    num_layers, accelerators = MOST_LAYERS, MOST_ACCELERATORS
    rng = random.Random(2026)
    names = ["embedding", *["block"] * (num_layers - 2), "head"]
    layers = []
    for index, name in enumerate(names):
        factor = BLOCK_FORWARD_SECONDS * (1 + 0.02 * rng.random() if distinct else 1)
        forward, backward = PROPORTIONS[name]
        widths = widths_up_to(accelerators)
        layers.append(
            Layer(
                name=f"{name}-{index}",
                forward_seconds={g: factor * t for g, t in zip(widths, forward, strict=False)},
                backward_seconds={g: factor * t for g, t in zip(widths, backward, strict=False)},
                parameter_bytes=4 * PARAMETERS[name],
                state_bytes=STATE_BYTES_PER_PARAMETER * PARAMETERS[name],
                activation_bytes=34 * HIDDEN_BYTES // 4,
                output_bytes=HIDDEN_BYTES,
            )
        )
    return ModelProfile(
        microbatch_size=1,
        hardware=Hardware(
            node_kinds=(
                NodeKind(
                    name="node",
                    accelerators_per_node=accelerators,
                    accelerator_memory_bytes=16 * 2**30,
                ),
            ),
            intra_node_bytes_per_second=300e9,
            inter_node_bytes_per_second=25e9,
            link_latency_seconds=5e-6,
        ),
        layers=tuple(layers),
    )


if __name__ == "__main__":
    for variant in (False, True):
        file_of(variant).write_text(format_profile(made(distinct=variant)))
