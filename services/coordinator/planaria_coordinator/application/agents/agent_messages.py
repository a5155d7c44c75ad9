"""What agents say, in the application's words; entry points convert to these."""

from dataclasses import dataclass, field
from datetime import datetime

from planaria_coordinator.domain.engines.directive import CommitRecord, LayerWritten
from planaria_coordinator.domain.engines.links import LinkDirection, LinkFailure
from planaria_coordinator.domain.engines.node import EngineSnapshot
from planaria_coordinator.domain.engines.outcome import CheckpointTaken, Failure
from planaria_coordinator.domain.engines.silence import Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who connects."""

    node_id: str
    agent_id: str
    version: str
    protocol_version: int
    advertise_address: str
    num_accelerators: int
    accelerator_kind: str
    accelerator_memory_bytes: int
    pid: int
    engines: tuple[EngineSnapshot, ...]
    labels: dict[str, str] = field(default_factory=dict)
    boot_id: str
    """Of this run of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The node is accepted; times in seconds."""

    coordinator_id: str
    epoch: int
    heartbeat_interval_seconds: float
    agent_lease_seconds: float
    progress_deadline_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """A heartbeat has come."""

    may_leave: bool
    """No job has anything on the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """Asks for a heartbeat at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Asks whether another node's machine answers."""

    probe_id: str
    addresses: tuple[str, ...]
    """Where its engines listen."""
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What came of a probe."""

    probe_id: str
    reach: Reach | None
    """None: it could not be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsStored:
    """Reports up to this one need not be sent again."""

    report_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineExited:
    """The process of an engine ended."""

    job_id: str
    engine_id: str
    exit_code: int | None
    """Negative: the signal that ended it; None when the agent cannot know."""
    detect_time: datetime
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFailed:
    """The link between two engines failed, as one of them sees it."""

    job_id: str
    engine_id: str
    peer_engine_id: str
    direction: LinkDirection
    failure: LinkFailure
    detect_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """An engine cannot go on."""

    job_id: str
    engine_id: str
    generation: int
    failure: Failure
    fatal: bool
    detect_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A step was committed."""

    job_id: str
    record: CommitRecord
    learning_rate: float
    step_seconds: float
    commit_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """What became of an engine's part of a checkpoint."""

    job_id: str
    engine_id: str
    version: int
    report: CheckpointTaken | LayerWritten | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """Lines that an engine wrote."""

    job_id: str
    engine_id: str
    lines: tuple[str, ...]
    read_time: datetime
