"""A profile in the terminal: what each kind of layer takes, and how far to trust it."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from planaria_common.measurement import Measurement
from planaria_common.words import bytes_in_words
from planaria_planner.cost.measured import StepCheck
from planaria_planner.cost.profile import Layer, ModelProfile

_HEADERS = (
    *("LAYERS", "WIDTH", "FORWARD", "BACKWARD"),
    *("PARAMETERS", "STATE", "ACTIVATIONS", "OUTPUT"),
)

_BUSY_SPREAD = 0.2
"""On an idle machine the quartiles of a pass lie within a few per cent."""

Spreads = Mapping[str, tuple[float, float]]
"""Spread of forward and backward seconds, by the layer's name."""


def draw_profile(profile: ModelProfile, spreads: Spreads, console: Console) -> None:
    """Print a profile; of equal neighbours one stands for all."""
    table = Table(box=None, pad_edge=False)
    for header in _HEADERS:
        table.add_column(header, no_wrap=True)
    for _, group in groupby(profile.layers, key=_costs):
        layers = list(group)
        first = layers[0]
        forward_spread, backward_spread = spreads.get(first.name, (None, None))
        for width in sorted(first.forward_seconds):
            is_first = width == min(first.forward_seconds)
            table.add_row(
                _names(layers) if is_first else "",
                str(width),
                _time(first.forward_seconds[width], forward_spread),
                _time(first.backward_seconds[width], backward_spread),
                *(_sizes(first) if is_first else ()),
            )
    console.print(table)
    _draw_hardware(profile, console)


def draw_measurement(
    measurement: Measurement, check: StepCheck | None, *, inter_node_is_given: bool, out: Console
) -> None:
    """Print what a measured profile rests on."""
    link = measurement.link
    out.print(f"measured on {measurement.accelerator}; after ±: half the distance of the quartiles")
    out.print(f"link within the node: {link.description}, ±{50 * link.spread:.0f}%")
    if not inter_node_is_given:
        out.print(
            "link between nodes: taken to be the same, not measured;"
            " give it with --inter-node-bytes-per-second"
        )
    out.print("stages of several accelerators: not measured, engines do not run them yet")
    if _mean_spread(measurement) > _BUSY_SPREAD:
        out.print("warning: the times vary widely; measure again while the machine is idle")
    if check is None:
        out.print("cost model: not checked")
        return
    error = check.relative_error
    out.print(
        f"cost model: {_time(check.predicted_seconds)} for a step of"
        f" {check.num_microbatches} microbatches, {abs(error):.1%} too"
        f" {'little' if error < 0 else 'much'}: measured"
        f" {_time(check.measured_seconds, check.spread)}, with"
        f" {_time(check.update_seconds)} for the update, which the model leaves out"
    )


def _mean_spread(measurement: Measurement) -> float:
    """The spread of the passes, each weighted with its time."""
    passes = [timing for layer in measurement.layers for timing in (layer.forward, layer.backward)]
    total = sum(timing.median_seconds for timing in passes)
    return sum(timing.spread * timing.median_seconds for timing in passes) / total


def _draw_hardware(profile: ModelProfile, out: Console) -> None:
    hardware = profile.hardware
    (kind,) = hardware.node_kinds
    out.print(
        f"node {kind.name}: {kind.accelerators_per_node} x"
        f" {bytes_in_words(kind.accelerator_memory_bytes)};"
        f" {bytes_in_words(hardware.intra_node_bytes_per_second)}/s within a node,"
        f" {bytes_in_words(hardware.inter_node_bytes_per_second)}/s between nodes,"
        f" latency {_time(hardware.link_latency_seconds)};"
        f" microbatches of {profile.microbatch_size}"
    )
    widest = max(profile.layers[0].forward_seconds)
    if widest < kind.accelerators_per_node:
        out.print(
            f"no stage has more than {widest}: planaria plan --max-stage-accelerators {widest}"
        )


def _costs(layer: Layer) -> tuple[object, ...]:
    return (
        sorted(layer.forward_seconds.items()),
        sorted(layer.backward_seconds.items()),
        *(layer.parameter_bytes, layer.state_bytes, layer.activation_bytes, layer.output_bytes),
    )


def _names(layers: Sequence[Layer]) -> str:
    if len(layers) == 1:
        return layers[0].name
    return f"{layers[0].name} to {layers[-1].name.split()[-1]}"


def _sizes(layer: Layer) -> tuple[str, ...]:
    sizes = (layer.parameter_bytes, layer.state_bytes, layer.activation_bytes, layer.output_bytes)
    return tuple(bytes_in_words(size) for size in sizes)


def _time(seconds: float, spread: float | None = None) -> str:
    unit, factor = "µs", 1e6
    if seconds >= 1:
        unit, factor = "s", 1.0
    elif seconds >= 1e-3:
        unit, factor = "ms", 1e3
    suffix = "" if spread is None else f" ±{50 * spread:.0f}%"
    return f"{seconds * factor:.3g} {unit}{suffix}"
