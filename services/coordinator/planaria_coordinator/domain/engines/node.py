"""Nodes and the engines on them, as users see them."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from planaria.models import NodeStateName

NodeState = NodeStateName


class EngineState(StrEnum):
    """The values of `planaria.api.worker.v1.EngineState`, without the prefix."""

    STARTING = "STARTING"
    PARKED = "PARKED"
    REBUILDING = "REBUILDING"
    TRAINING = "TRAINING"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """An engine at one moment, as its agent sees it."""

    engine_id: str
    job_id: str
    accelerator: int
    generation: int
    """The newest generation it has seen."""
    state: EngineState
    committed_steps: int = 0
    progress: int = 0
    """Counts finished actions; does not change when the engine hangs."""
    pid: int = 0
    data_address: str = ""
    """Where peers fetch layers."""
    store_address: str = ""
    """Its rendezvous store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine: the unit that fails, joins and leaves."""

    id: str
    state: NodeState
    address: str
    """Where other nodes reach its engines."""
    num_accelerators: int
    accelerator_kind: str
    """"cpu" or "cuda"."""
    accelerator_memory_bytes: int
    agent_id: str
    """Random, new for every start of the agent."""
    agent_pid: int
    version: str
    boot_id: str
    """Of the run of the machine that its agent last spoke of: with another one, all that ran on it
    before is gone."""
    join_time: datetime
    heartbeat_time: datetime
    """The last heartbeat; as old as one flush in the database, exact in what services return."""
    labels: dict[str, str] = field(default_factory=dict)
    state_before_leaving: NodeState | None = None
    """What it was when its agent was asked to end; the next agent finds it so again."""
    """What its agent was told of it."""
    silent_since_time: datetime | None = None
    """Since when nothing has been heard of it, while it is silent and not lost; like `engines`."""
    engines: tuple[EngineSnapshot, ...] = ()
    """Filled in from memory by the services; repositories need not store it."""
