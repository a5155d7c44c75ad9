"""Profiles for tests: random small models, tight and loose in memory."""

import random

from planaria_planner.cost.profile import Hardware, Layer, ModelProfile, NodeKind, widths_up_to


def random_profile(
    rng: random.Random,
    *,
    num_layers: int,
    accelerators: tuple[int, ...] = (1,),
    tight: bool = False,
) -> ModelProfile:
    """Return a random model; `accelerators` are those of a node of each kind.

    Where `tight`, an accelerator holds between a layer and half of the model, so that memory
    limits both the partitions and the microbatches in flight.
    """
    layers = tuple(_layer(rng, index, max(accelerators)) for index in range(num_layers))
    state = [layer.state_bytes + layer.activation_bytes for layer in layers]
    kinds = tuple(
        NodeKind(
            name=f"kind-{index}",
            accelerators_per_node=count,
            accelerator_memory_bytes=(
                int(rng.uniform(0.7 * max(state), 0.8 * sum(state))) if tight else 1 << 40
            ),
            relative_speed=1.0 if index == 0 else rng.choice([0.5, 0.8, 1.7]),
        )
        for index, count in enumerate(accelerators)
    )
    return ModelProfile(
        microbatch_size=1,
        hardware=Hardware(
            node_kinds=kinds,
            intra_node_bytes_per_second=10 ** rng.uniform(9, 11),
            inter_node_bytes_per_second=10 ** rng.uniform(8, 10),
            link_latency_seconds=rng.choice([0.0, 1e-5, 1e-4]),
        ),
        layers=layers,
    )


def _layer(rng: random.Random, index: int, accelerators: int) -> Layer:
    forward, backward = rng.choice([1e-3, rng.uniform(1e-4, 5e-3)]), rng.uniform(1e-4, 1e-2)
    efficiency = rng.uniform(0.4, 1.0)
    widths = widths_up_to(accelerators)
    parameters = rng.randrange(1, 10**6)
    return Layer(
        name=f"layer-{index}",
        forward_seconds={g: forward / g**efficiency for g in widths},
        backward_seconds={g: backward / g**efficiency for g in widths},
        parameter_bytes=parameters,
        state_bytes=4 * parameters,
        activation_bytes=rng.randrange(0, 10**6),
        output_bytes=rng.choice([10**5, rng.randrange(1, 10**6)]),
    )


def equal_layers(
    num_layers: int,
    *,
    accelerators: int = 1,
    memory_bytes: int = 1 << 40,
    state_bytes: int = 1000,
    activation_bytes: int = 100,
) -> ModelProfile:
    """Return a model of equal layers of 1 ms forward and 2 ms backward, nearly free to send."""
    return ModelProfile(
        microbatch_size=1,
        hardware=Hardware(
            node_kinds=(
                NodeKind(
                    name="node",
                    accelerators_per_node=accelerators,
                    accelerator_memory_bytes=memory_bytes,
                ),
            ),
            intra_node_bytes_per_second=1e11,
            inter_node_bytes_per_second=1e10,
            link_latency_seconds=1e-6,
        ),
        layers=tuple(
            Layer(
                name=f"layer-{index}",
                forward_seconds={g: 1e-3 / g for g in widths_up_to(accelerators)},
                backward_seconds={g: 2e-3 / g for g in widths_up_to(accelerators)},
                parameter_bytes=state_bytes // 4,
                state_bytes=state_bytes,
                activation_bytes=activation_bytes,
                output_bytes=100,
            )
            for index in range(num_layers)
        ),
    )
