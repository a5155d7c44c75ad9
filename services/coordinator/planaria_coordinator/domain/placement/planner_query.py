"""What the planner is asked and what it answers."""

from dataclasses import dataclass

from planaria_coordinator.domain.placement.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """The cost of one layer for one microbatch on one accelerator."""

    name: str
    forward_seconds: float
    backward_seconds: float
    parameter_bytes: int
    state_bytes: int
    """Parameters, gradients and optimizer state together."""
    activation_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes that are alike."""

    name: str
    accelerators_per_node: int
    accelerator_memory_bytes: int
    relative_speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """The machines and the links between them."""

    node_kinds: tuple[NodeKind, ...]
    intra_node_bytes_per_second: float
    inter_node_bytes_per_second: float
    link_latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model's costs, layer by layer; stages use one accelerator each (g = 1)."""

    microbatch_size: int
    hardware: HardwareProfile
    layers: tuple[LayerProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What every planning request states about the job."""

    profile: ModelProfile
    num_microbatches: int
    fault_tolerance: int
    min_nodes_per_pipeline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNode:
    """A node that may be used."""

    node_id: str
    kind: str = ""
    """Name of its kind in the profile."""
    relative_speed: float = 0.0
    """Measured, relative to its kind; 0 for as profiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Layers that a node holds in the version worth copying."""

    node_id: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCopy:
    """One layer's state to be copied."""

    layer: int
    source_node_id: str
    destination_node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """The planner's answer; `copies` is empty for a new job."""

    plan: Plan
    reason: str
    min_nodes: int
    """Fewest nodes that hold the model (n0)."""
    copies: tuple[LayerCopy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuery:
    """One question to the planner; equal questions have equal answers.

    Without `current` it asks for the best plan of a new job, otherwise for the plan that follows.
    """

    problem: Problem
    nodes: tuple[PlanNode, ...]
    current: Plan | None = None
    holdings: tuple[Holding, ...] = ()
    horizon_seconds: float = 0.0
