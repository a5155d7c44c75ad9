"""An engine as its job knows it, and the directives it has not answered yet."""

from dataclasses import dataclass, field
from typing import Literal

from planaria_coordinator.domain.engines.directive import InitialState
from planaria_coordinator.domain.engines.outcome import MeasuredLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that is alive, as far as is known."""

    id: str
    node_id: str
    accelerator: int
    prepared: bool = False
    data_address: str = ""
    store_address: str = ""
    data_digest: str = ""
    fingerprint: dict[str, str] = field(default_factory=dict)
    measured_layers: tuple[MeasuredLayer, ...] = ()
    model_digest: str = ""
    peak_flops_per_second: float = 0.0
    initial_state: InitialState | None = None
    ties_embeddings: bool = False
    has_returned: bool = False
    """It was out of reach for so long that the job went on without it, or waited for it."""


def make_engine_id(job_id: str, node_id: str, accelerator: int, number: int) -> str:
    """Return the id of an engine; `number` counts the job's engines, so no id is used twice."""
    return f"{job_id}/{node_id}/{accelerator}/{number}"


def node_of(engine_id: str) -> str:
    """Return the node that an engine is or was on."""
    return engine_id.split("/")[1]


DirectiveKind = Literal[
    "prepare",
    "quiesce",
    "roll_forward",
    "copy",
    "activate",
    "stage_plan",
    "switch",
    "digest_layers",
    "export",
    "write_checkpoint",
    "seal_checkpoint",
    "discard_checkpoint",
    "stop",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A directive that has no result yet."""

    directive_id: str
    engine_id: str
    node_id: str
    kind: DirectiveKind
    deadline_seconds: float
    """On the monotonic clock."""
    allowed_seconds: float
    """What the deadline was set by."""
    num_attempt: int = 1
    version: int = 0
    """Of a checkpoint's directive."""
