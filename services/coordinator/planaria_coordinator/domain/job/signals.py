"""What a job's state machine reacts to."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from planaria_common.errors import ErrorReason
from planaria_coordinator.domain.engines.directive import CommitRecord, LayerWritten
from planaria_coordinator.domain.engines.links import LinkDirection, LinkFailure
from planaria_coordinator.domain.engines.outcome import CheckpointTaken, DirectiveResult, Failure
from planaria_coordinator.domain.job.requirements import NodeFacts
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesGranted:
    """The job gets nodes: to start, to go on after waiting, or to grow."""

    nodes: tuple[NodeFacts, ...]
    nodes_per_replica: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StillWaits:
    """The job gets no nodes: why, in words."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node of the job is lost."""

    node_id: str
    fault_time: datetime
    reason: str
    gone: bool
    """Its processes are known to have ended, or an administrator says so; else it is only
    unreachable, and may come back with what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldersReturned:
    """The agent of a lost node is back, with engines that the job had there."""

    node: NodeFacts
    engine_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost:
    """An engine is gone, or is to be treated so."""

    engine_id: str
    fault_time: datetime
    reason: str
    process_ended: bool
    """Its agent saw the process end; otherwise it is ordered to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFailed:
    """An engine says that its link with another one failed."""

    engine_id: str
    peer_engine_id: str
    failure: LinkFailure
    direction: LinkDirection
    fault_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTogether:
    """Losses that are known at the same moment: one generation follows from all of them."""

    signals: tuple[NodeLost | EngineLost | LinkFailed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesStuck:
    """No engine has advanced for too long: somebody hangs, and a fence will show who."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDisturbed:
    """An engine's communicators broke; the engine itself is sound and keeps its layers."""

    engine_id: str
    generation: int
    message: str
    fault_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFaulted:
    """The job cannot go on: every engine would meet this error again."""

    engine_id: str
    """The engine that met it; empty if it was found without one."""
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultArrived:
    """An engine answered a directive."""

    result: DirectiveResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArrived:
    """The planner, and a custom scheduler where there is one, answered."""

    query: PlanQuery
    answer: PlanAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefused:
    """The planner says that there is no plan."""

    query: PlanQuery
    reason: ErrorReason
    message: str
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """An engine reported a committed step."""

    record: CommitRecord
    commit_time: datetime
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReported:
    """An engine reported its part of a checkpoint."""

    engine_id: str
    version: int
    report: CheckpointTaken | LayerWritten | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinished:
    """An engine has committed the last step and is parked."""

    engine_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWanted:
    """A node of the job is to be freed."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainEnded:
    """A node of the job may be kept after all."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseWanted:
    """The user wants the job to pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeWanted:
    """The user wants the job to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelWanted:
    """The user wants the job to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""

    absent_nodes: frozenset[str] = frozenset()
    """Nodes whose agents are away or silent: whether their engines answer in time cannot be known,
    and whether they are lost is decided elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReturned:
    """A node's agent is back: directives without a result are sent again now."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """The coordinator itself was blocked: no deadline counts that time."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The coordinator has started again with what its database knew."""


UserRequest = (
    NodesGranted | StillWaits | DrainWanted | DrainEnded | PauseWanted | ResumeWanted | CancelWanted
)
"""What users want of a job, and what the scheduler grants it."""

Signal = (
    UserRequest
    | NodeLost
    | HoldersReturned
    | EngineLost
    | LinkFailed
    | SeenTogether
    | EnginesStuck
    | EngineDisturbed
    | JobFaulted
    | ResultArrived
    | PlanArrived
    | PlanRefused
    | StepCommitted
    | CheckpointReported
    | EngineFinished
    | Tick
    | AgentReturned
    | Stalled
    | Restarted
)


def seen_together(signals: Iterable[Signal]) -> Iterator[Signal]:
    """Put the losses among some signals into one, in the place of the first."""
    signals = tuple(signals)
    losses = tuple(s for s in signals if isinstance(s, NodeLost | EngineLost | LinkFailed))
    losses = tuple(sorted(losses, key=lambda s: isinstance(s, LinkFailed)))  # what is certain first
    is_told = False
    for signal in signals:
        if len(losses) < 2 or not isinstance(signal, NodeLost | EngineLost | LinkFailed):
            yield signal
        elif not is_told:
            is_told = True
            yield SeenTogether(signals=losses)
