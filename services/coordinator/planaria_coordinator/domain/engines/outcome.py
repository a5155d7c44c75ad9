"""What comes of directives; like them, it round-trips through JSON by field types alone."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import CommitRecord, InitialState
from planaria_coordinator.domain.engines.node import EngineSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """A layer's measured cost for one microbatch."""

    layer: int
    forward_seconds: float
    backward_seconds: float
    parameter_bytes: int = 0
    state_bytes: int = 0
    activation_bytes: int = 0
    output_bytes: int = 0
    forward_flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The engine is ready."""

    engine: EngineSnapshot
    data_digest: str
    fingerprint: dict[str, str]
    measured_layers: tuple[MeasuredLayer, ...]
    model_digest: str = ""
    """Of the source of a model by import path."""
    peak_flops_per_second: float = 0.0
    initial_state: InitialState | None = None
    """Where the job begins; None: from its seed."""
    ties_embeddings: bool = False
    """Whether the last layer shares a parameter with the first."""
    kind: Literal["prepared"] = "prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLayer:
    """A layer's state that an engine holds, and its version (number of committed steps)."""

    layer: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGroup:
    """A group of engines that sum gradients or vote."""

    id: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """What an engine was doing when it was fenced."""

    committed_steps: int
    last_commit: CommitRecord | None
    layers: tuple[HeldLayer, ...]
    finished_microbatches: tuple[int, ...]
    step_compute_seconds: float
    fence_time: datetime
    park_time: datetime | None
    """When it parked; None while it keeps computing."""
    applied_generation: int = 0
    """Of the Activate that it last applied."""
    kept_microbatches: tuple[int, ...] = ()
    """Of the step in flight: those in its local gradients, or to be there without a directive."""
    idle_groups: tuple[IdleGroup, ...] = ()
    """In which nothing is under way, and that have lost nobody."""
    microbatch_seconds: float = 0.0
    """What one took in the quickest of its last steps in this assignment; 0 before the first."""
    compute_end_time: datetime | None = None
    """When it finished its last pass or update; None: it never has."""
    kind: Literal["fence_report"] = "fence_report"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledForward:
    """A step was applied."""

    committed_steps: int
    stale_layers: tuple[int, ...]
    kind: Literal["rolled_forward"] = "rolled_forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Layers have arrived."""

    num_bytes: int
    layers: tuple[HeldLayer, ...]
    """All layers held now."""
    start_time: datetime
    end_time: datetime
    kind: Literal["copied"] = "copied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activated:
    """The engine has its assignment."""

    rebuild_start_time: datetime
    resume_time: datetime
    committed_steps: int = 0
    """When the assignment was activated."""
    kind: Literal["activated"] = "activated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The next assignment is ready, and its layers follow every commit."""

    num_bytes: int
    start_time: datetime
    rebuild_end_time: datetime
    copy_end_time: datetime | None
    """None when no layer was missing."""
    kind: Literal["staged"] = "staged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Digested:
    """Digests of layers, hexadecimal, by layer."""

    digests: dict[int, str]
    version: int
    kind: Literal["digested"] = "digested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The model is written."""

    path: str
    num_bytes: int
    kind: Literal["exported"] = "exported"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTaken:
    """The engine has copies of layers and writes them."""

    layers: tuple[int, ...]
    kind: Literal["checkpoint_taken"] = "checkpoint_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSealed:
    """The checkpoint is complete."""

    path: str
    num_bytes: int
    removed: tuple[str, ...]
    """Names of the folders that were removed for it."""
    kind: Literal["checkpoint_sealed"] = "checkpoint_sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDiscarded:
    """The incomplete checkpoint is gone."""

    kind: Literal["checkpoint_discarded"] = "checkpoint_discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The process has been ordered to end."""

    kind: Literal["stopped"] = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """It could not be done."""

    reason: ErrorReason
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    kind: Literal["failure"] = "failure"


Outcome = (
    Prepared
    | FenceReport
    | RolledForward
    | Copied
    | Activated
    | Staged
    | Digested
    | Exported
    | CheckpointTaken
    | CheckpointSealed
    | CheckpointDiscarded
    | Stopped
    | Failure
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectiveResult:
    """What came of a directive."""

    directive_id: str
    job_id: str
    outcome: Outcome
