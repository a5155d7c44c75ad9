"""The cost model as integer prefix sums, for the dynamic programme.

Sums of floats depend on their order, which would break pruning: here seconds are int64
femtoseconds (1e-12 of a millisecond), and equal stages have equal costs whatever the order.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planaria_planner.cost.cost_model import CostModel
from planaria_planner.cost.profile import ModelProfile, invalid_profile, widths_up_to

FEMTOSECONDS = 1e15
"""Femtoseconds of a second."""

Int64Array = NDArray[np.int64]


class CostTables(NamedTuple):
    """Prefix sums over layers: the entry at l covers the layers before l.

    A named tuple and not a dataclass: compiled loops take it as it is.

    Attributes:
        compute: [kind, width, layer] femtoseconds of forward and backward.
        intra: [layer] x_s of a stage that ends before this layer, next stage on the same node.
        inter: the same, next stage on another node.
        sync: [width, layer] y of a first stage that ends before this layer.
        state: [layer] bytes.
        activation: [layer] bytes.
        widths: the numbers of accelerators a stage may have.
        accelerators: [kind] accelerators of a node.
        memory: [kind] bytes of an accelerator.
    """

    compute: Int64Array
    intra: Int64Array
    inter: Int64Array
    sync: Int64Array
    state: Int64Array
    activation: Int64Array
    widths: Int64Array
    accelerators: Int64Array
    memory: Int64Array


def cost_tables(profile: ModelProfile, max_width: int | None = None) -> CostTables:
    """Tabulate the cost model.

    Args:
        profile: the model.
        max_width: the most accelerators of a stage; no limit but the node's by default.

    Raises:
        PlanariaError: INVALID_PROFILE when a width that stages may have was not measured.
    """
    model = CostModel(profile)
    widths = _widths(profile, max_width)
    kinds = profile.hardware.node_kinds
    ends = range(profile.num_layers + 1)
    return CostTables(
        compute=np.array(
            [
                [
                    _prefix_time(model.layer_seconds(kind, layer, g) for layer in profile.layers)
                    for g in widths
                ]
                for kind in kinds
            ]
        ),
        intra=_times(model.send_seconds(end, same_node=True) if end else 0.0 for end in ends),
        inter=_times(model.send_seconds(end, same_node=False) if end else 0.0 for end in ends),
        sync=_sync(profile, widths),
        state=_prefix(layer.state_bytes for layer in profile.layers),
        activation=_prefix(layer.activation_bytes for layer in profile.layers),
        widths=np.array(widths, dtype=np.int64),
        accelerators=np.array([kind.accelerators_per_node for kind in kinds], dtype=np.int64),
        memory=np.array([kind.accelerator_memory_bytes for kind in kinds], dtype=np.int64),
    )


def _widths(profile: ModelProfile, max_width: int | None) -> tuple[int, ...]:
    widest = max(kind.accelerators_per_node for kind in profile.hardware.node_kinds)
    widths = widths_up_to(widest if max_width is None else min(widest, max_width))
    for width in widths:
        if width not in profile.layers[0].forward_seconds:
            raise invalid_profile(
                "layers[0].forward_seconds",
                f"no measurement for {width} accelerator(s), which a node has; limit stages to"
                f" {max(profile.layers[0].forward_seconds)} with --max-stage-accelerators",
            )
    return widths


def _sync(profile: ModelProfile, widths: tuple[int, ...]) -> Int64Array:
    bandwidth = profile.hardware.inter_node_bytes_per_second
    parameter_bytes = _prefix(layer.parameter_bytes for layer in profile.layers)
    return np.array(
        [_times(2 * int(total) / (g * bandwidth) for total in parameter_bytes) for g in widths]
    )


def _times(seconds: Iterable[float]) -> Int64Array:
    return np.array([round(value * FEMTOSECONDS) for value in seconds], dtype=np.int64)


def _prefix_time(seconds: Iterable[float]) -> Int64Array:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(_times(seconds))])


def _prefix(values: Iterable[int]) -> Int64Array:
    return np.concatenate(
        [np.zeros(1, dtype=np.int64), np.cumsum(np.array(list(values), dtype=np.int64))]
    )
