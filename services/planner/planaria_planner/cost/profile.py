"""What the planner knows of a model and its machines, valid by construction (planning.md 1)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planaria_common.errors import ErrorReason, PlanariaError, invalid

SECONDS_LIMIT = 4000.0
"""The most seconds one microbatch may take in all: the dynamic programme counts femtoseconds in
64 bits, which end at 9,223 s."""

BYTES_LIMIT = 1 << 53
"""The largest byte count of one layer or accelerator: larger ones are not exact in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The costs of one layer for one microbatch; the mappings go by number of accelerators.

    Attributes:
        forward_seconds: the forward pass.
        backward_seconds: the backward pass.
        parameter_bytes: the parameters, as summed over replicas.
        state_bytes: parameters, gradients and optimizer state together.
        activation_bytes: kept for the backward pass, per microbatch in flight.
        output_bytes: sent to the next layer.
    """

    name: str
    forward_seconds: Mapping[int, float]
    backward_seconds: Mapping[int, float]
    parameter_bytes: int
    state_bytes: int
    activation_bytes: int
    output_bytes: int

    def __hash__(self) -> int:
        """Mappings have no hash of their own; a profile is what templates are remembered by."""
        seconds = (*self.forward_seconds.values(), *self.backward_seconds.values())
        return hash((self.name, self.state_bytes, tuple(sorted(seconds))))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes that are alike; `relative_speed` 0.5 takes twice the profile's seconds."""

    name: str
    accelerators_per_node: int
    accelerator_memory_bytes: int
    relative_speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machines and the links between them; the first kind is the default."""

    node_kinds: tuple[NodeKind, ...]
    intra_node_bytes_per_second: float
    inter_node_bytes_per_second: float
    link_latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model's costs, layer by layer, and the hardware they were measured on.

    Raises:
        PlanariaError: INVALID_PROFILE, naming the first field that is wrong.
    """

    microbatch_size: int
    hardware: Hardware
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        for field, wrong in _mistakes(self):
            raise invalid_profile(field, wrong)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def kind_index(self, name: str) -> int:
        """Return the index of a kind by its name; the empty name is the first kind's.

        Raises:
            PlanariaError: INVALID_ARGUMENT when there is no such kind.
        """
        names = [kind.name for kind in self.hardware.node_kinds]
        if not name:
            return 0
        if name not in names:
            problem = f"the profile has no kind {name!r}; it has {', '.join(names)}"
            raise invalid("nodes", problem, kind=name)
        return names.index(name)


def widths_up_to(limit: int) -> tuple[int, ...]:
    """Return the powers of two from 1 to `limit`: how wide a stage may be."""
    return tuple(1 << power for power in range(max(limit, 0).bit_length()))


def invalid_profile(field: str, wrong: str) -> PlanariaError:
    """Return the error of a profile whose `field` is `wrong`; an empty one is the whole."""
    message = f"{field}: {wrong}" if field else wrong
    return PlanariaError(ErrorReason.INVALID_PROFILE, message, {"field": field})


Mistake = tuple[str, str]
"""A field's path and what is wrong with it."""


def _mistakes(profile: ModelProfile) -> Iterator[Mistake]:
    yield from _count("microbatch_size", profile.microbatch_size, least=1)
    yield from _hardware_mistakes(profile.hardware)
    if not profile.layers:
        yield "layers", "empty; a model has at least one layer"
    for index, layer in enumerate(profile.layers):
        yield from _layer_mistakes(f"layers[{index}]", layer, profile.layers[0])
    yield from _total_mistakes(profile)


def _hardware_mistakes(hardware: Hardware) -> Iterator[Mistake]:
    if not hardware.node_kinds:
        yield "hardware.node_kinds", "empty; name at least one kind of node"
    names = [kind.name for kind in hardware.node_kinds]
    for index, kind in enumerate(hardware.node_kinds):
        path = f"hardware.node_kinds[{index}]"
        if names.index(kind.name) != index:
            yield f"{path}.name", f"{kind.name!r} is used twice; names are unique"
        yield from _count(f"{path}.accelerators_per_node", kind.accelerators_per_node, least=1)
        yield from _count(
            f"{path}.accelerator_memory_bytes", kind.accelerator_memory_bytes, least=1
        )
        yield from _amount(f"{path}.relative_speed", kind.relative_speed, positive=True)
    for name in ("intra_node_bytes_per_second", "inter_node_bytes_per_second"):
        yield from _amount(f"hardware.{name}", getattr(hardware, name), positive=True)
    yield from _amount("hardware.link_latency_seconds", hardware.link_latency_seconds)


def _layer_mistakes(path: str, layer: Layer, first: Layer) -> Iterator[Mistake]:
    widths = sorted(first.forward_seconds)
    for name in ("forward_seconds", "backward_seconds"):
        times: Mapping[int, float] = getattr(layer, name)
        for width, seconds in sorted(times.items()):
            yield from _amount(f"{path}.{name}.{width}", seconds)
            if width not in widths_up_to(width):
                yield f"{path}.{name}.{width}", "not a power of two"
        expected = sorted({*widths, *widths_up_to(max(widths, default=1))})
        for width in expected:
            if width not in times:
                yield f"{path}.{name}", f"no measurement for {width} accelerator(s)"
        for width in sorted(times):
            if width not in expected:
                yield f"{path}.{name}.{width}", "a width that the first layer lacks"
    for name in ("parameter_bytes", "state_bytes", "activation_bytes", "output_bytes"):
        yield from _count(f"{path}.{name}", getattr(layer, name), least=0)


def _total_mistakes(profile: ModelProfile) -> Iterator[Mistake]:
    """The whole model takes some time, and not more than the planner can count."""
    hardware = profile.hardware
    slowest = min(kind.relative_speed for kind in hardware.node_kinds)
    compute = sum(
        max(layer.forward_seconds.values()) + max(layer.backward_seconds.values())
        for layer in profile.layers
    )
    if compute <= 0:
        yield "layers", "every layer takes zero seconds; give measured times"
    bandwidth = min(hardware.intra_node_bytes_per_second, hardware.inter_node_bytes_per_second)
    traffic = sum(layer.output_bytes + layer.parameter_bytes for layer in profile.layers)
    links = 2 * (hardware.link_latency_seconds * profile.num_layers + traffic / bandwidth)
    if not compute / slowest + links <= SECONDS_LIMIT:
        yield "layers", f"one microbatch takes more than {SECONDS_LIMIT:.0f} s in all"


def _count(path: str, value: int, *, least: int) -> Iterator[Mistake]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield path, f"{value!r} is not a whole number"
    elif value < least:
        yield path, f"{value} is less than {least}"
    elif value > BYTES_LIMIT:
        yield path, f"{value} is more than {BYTES_LIMIT}"


def _amount(path: str, value: float, *, positive: bool = False) -> Iterator[Mistake]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield path, f"{value!r} is not a number"
    elif not math.isfinite(value):
        yield path, f"{value} is not finite"
    elif value < 0 or (positive and value == 0):
        yield path, f"{value} is not {'positive' if positive else 'zero or more'}"
