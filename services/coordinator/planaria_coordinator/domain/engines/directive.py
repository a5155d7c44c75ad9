"""Directives to engines: everything that a coordinator can tell one.

Every class here round-trips through JSON by field types alone (`kind` tells the members of a union
apart), so that repositories can store them as documents.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class QuiesceMode(StrEnum):
    """When an engine stops."""

    IMMEDIATE = "IMMEDIATE"
    AT_COMMIT = "AT_COMMIT"
    FENCE = "FENCE"
    """At once for sums and commits; healthy pipelines keep computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """What every engine knows of a step once it has passed the commit point."""

    step: int
    generation: int
    gradient_norm: float
    loss: float
    num_tokens: int
    next_generation: int = 0
    """The one for which all engines switch or park after this step; 0: none."""
    evaluation_loss: float | None = None
    """Of the parameters that the step began with; None: it did not evaluate."""
    num_skipped: int = 0
    """How many steps in a row were skipped, this one included; 0: it was applied."""
    skipped_layer: int = 0
    """The lowest layer with a gradient that was not finite or too large, the last one for a loss;
    where the step was skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSource:
    """Engines to fetch a layer from; none, in Export: the engine that writes holds it."""

    layer: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAssignment:
    """A stage and the engine that runs it."""

    engine_id: str
    data_address: str
    first_layer: int
    num_layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineAssignment:
    """A pipeline and the engines that run it."""

    stages: tuple[StageAssignment, ...]
    microbatches: tuple[int, ...]
    step_microbatches: tuple[int, ...] = ()
    """Those of the step in flight, where they are others."""
    keeps_step: bool = False
    """Its engines run it now, and keep what they have computed of the step in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAssignment:
    """An engine that takes part in sums without computing, and so remains a replica."""

    engine_id: str
    data_address: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """Where a job begins, if not from its seed."""

    path: str
    step: int
    """Number of steps in its parameters."""
    sha256: str
    """Of a checkpoint's manifest, or of the weights, hexadecimal."""
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Start the engine."""

    job_spec: str
    accelerator: int
    job_secret: str = field(repr=False)
    initial_state: InitialState | None = None
    """Where the job begins, once its first engines have found it."""
    forward_flops: tuple[int, ...] = ()
    """Of each layer, once an engine has counted them."""
    kind: Literal["prepare"] = "prepare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """Stop at a safe place and report."""

    mode: QuiesceMode
    lost_engine_ids: tuple[str, ...] = ()
    kind: Literal["quiesce"] = "quiesce"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollForward:
    """Apply a step that another engine has already committed."""

    record: CommitRecord
    kind: Literal["roll_forward"] = "roll_forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Obtain layers in one version, from other engines and from the job's initial state."""

    layers: tuple[LayerSource, ...]
    version: int
    initial_layers: tuple[int, ...] = ()
    kind: Literal["copy"] = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommand:
    """What every command that brings a plan says of it."""

    pipelines: tuple[PipelineAssignment, ...]
    store_address: str
    rebuild_timeout_seconds: float
    followers: tuple[FollowerAssignment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate(PlanCommand):
    """Put an assignment of a plan in force at once, and train."""

    committed_steps: int
    kept_groups: tuple[str, ...] = ()
    """Groups that all their members have reported idle: they are not rebuilt."""
    kind: Literal["activate"] = "activate"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan(PlanCommand):
    """Make an assignment of a plan ready while training continues; Switch puts it in force."""

    layers: tuple[LayerSource, ...] = ()
    """Those that the assignment needs and the engine lacks; it follows them."""
    kind: Literal["stage_plan"] = "stage_plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Activate the staged assignment at the commit at which all engines hold this."""

    kind: Literal["switch"] = "switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestLayers:
    """Compute the digests of layers that the engine holds."""

    layers: tuple[int, ...]
    kind: Literal["digest_layers"] = "digest_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Write the model."""

    path: str
    format: str
    layers: tuple[LayerSource, ...]
    kind: Literal["export"] = "export"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWritten:
    """The file of a layer of a checkpoint is on the disk."""

    layer: int
    num_bytes: int
    sha256: str
    """Of the file, hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint:
    """Write layers of a checkpoint."""

    version: int
    layers: tuple[int, ...]
    kind: Literal["write_checkpoint"] = "write_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealCheckpoint:
    """Verify a checkpoint and make it complete."""

    version: int
    layers: tuple[LayerWritten, ...]
    kind: Literal["seal_checkpoint"] = "seal_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardCheckpoint:
    """Remove a checkpoint that will not be complete."""

    version: int
    kind: Literal["discard_checkpoint"] = "discard_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the engine's process."""

    reason: str
    kind: Literal["stop"] = "stop"


Command = (
    Prepare
    | Quiesce
    | RollForward
    | Copy
    | Activate
    | StagePlan
    | Switch
    | DigestLayers
    | Export
    | WriteCheckpoint
    | SealCheckpoint
    | DiscardCheckpoint
    | Stop
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One command to one engine, by way of its node's agent."""

    id: str
    """Unique; the result carries it, and a repetition takes no second effect."""
    job_id: str
    generation: int
    engine_id: str
    node_id: str
    command: Command
