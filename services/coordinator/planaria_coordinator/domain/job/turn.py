"""One decision being made: the run as it will be, and the actions that follow from it.

A Turn lives inside one call of `decide`; outside of that call nothing is mutable.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from planaria_coordinator.domain.engines.directive import Command, Directive, Prepare, Stop
from planaria_coordinator.domain.engines.engine import Engine, Pending, make_engine_id
from planaria_coordinator.domain.job.actions import (
    Action,
    AskPlanner,
    Drop,
    Emit,
    SaveGeneration,
    Send,
)
from planaria_coordinator.domain.job.event import EventDraft
from planaria_coordinator.domain.job.job import JobState
from planaria_coordinator.domain.job.job_run import JobRun, Limits, Moment
from planaria_coordinator.domain.job.time_account import Activity
from planaria_coordinator.domain.job.utilization import counted_flops
from planaria_coordinator.domain.placement.placement import Placement
from planaria_coordinator.domain.placement.planner_query import PlanQuery
from planaria_coordinator.domain.recovery.transition import Phase, Transition

_SURVIVES_A_FENCE = (
    "prepare",
    "stop",
    "write_checkpoint",
    "seal_checkpoint",
    "discard_checkpoint",
)
"""Kinds of directives that mean the same in whatever generation they are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from a signal."""

    run: JobRun
    actions: tuple[Action, ...] = ()
    reason: str = ""
    """Why, in words; empty when nothing changed."""
    durable: bool = False
    """Whether the run must be stored before the actions are carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a decision has found to be lost, and is to recover from."""

    engines: tuple[str, ...]
    reason: str
    fault_time: datetime
    node_id: str = ""
    """All of it is lost; empty: only engines."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """A decision being made."""

    now: Moment
    run: JobRun
    limits: Limits
    actions: list[Action] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    durable: bool = False
    """Whether the run must be stored before anything is sent."""
    losses: list[Loss] = field(default_factory=list)
    """From which one recovery is to follow before the decision ends."""
    silent_engines: dict[str, str] = field(default_factory=dict)
    """Engines to be declared lost before the decision ends, and why."""
    retry_reason: str = ""
    """Why the transition must start again although no engine was lost."""

    @property
    def decision(self) -> Decision:
        """What has been decided so far."""
        return Decision(
            run=self.run,
            actions=tuple(self.actions),
            reason="; ".join(self.reasons),
            durable=self.durable,
        )

    def change(self, **changes: Any) -> None:
        """Replace fields of the run; to be stored."""
        self.note_run(**changes)
        self.durable = True

    @property
    def transition(self) -> Transition:
        """The transition under way."""
        if self.run.transition is None:
            raise AssertionError(f"{self.run.job_id} has no transition under way")
        return self.run.transition

    @property
    def target(self) -> Placement:
        """The placement that the transition under way leads to."""
        if self.transition.target is None:
            raise AssertionError("there is no plan yet")
        return self.transition.target

    def note_run(self, **changes: Any) -> None:
        """Replace fields of the run that may be lost with the coordinator."""
        self.run = replace(self.run, **changes)

    def note(self, **changes: Any) -> None:
        """Replace fields of the transition that may be lost with the coordinator."""
        self.note_run(transition=replace(self.transition, **changes))

    @property
    def seconds_until_commit(self) -> float:
        """How long a step's end is waited for."""
        return max(self.limits.at_commit_seconds, 10 * self.run.last_step_seconds)

    def because(self, reason: str) -> None:
        """Add to the reason of the decision, in words."""
        self.reasons.append(reason)

    def emit(self, event_type: str, message: str, *, node_id: str = "", **details: Any) -> None:
        """Write an event."""
        self.actions.append(
            Emit(
                event=EventDraft(
                    time=self.now.time,
                    type=event_type,
                    message=message,
                    job_id=self.run.job_id,
                    node_id=node_id,
                    generation=self.run.generation,
                    details=details,
                )
            )
        )
        self.durable = True

    def account(self, activity: Activity, at: datetime | None = None) -> None:
        """Switch the activity that the job's time is accounted to, now or at an earlier moment."""
        moment = min(at, self.now.time) if at else self.now.time
        self.change(time_account=self.run.time_account.switch(activity, moment))

    def account_phase(self, activity: Activity) -> None:
        """Name the time of a phase; all that precedes the first step is starting."""
        self.account(activity if self.run.start_time else Activity.STARTING)

    def set_state(self, state: JobState) -> None:
        self.change(state=state)

    def enter(self, phase: Phase, reason: str, **changes: Any) -> None:
        """Begin a phase of the transition."""
        self.note(phase=phase, **changes)
        self.because(reason)
        self.durable = True

    def save_generation(self, cause: str, **changes: Any) -> None:
        self.actions.append(
            SaveGeneration(
                generation=self.run.generation,
                cause=cause,
                open_time=self.transition.open_time,
                **changes,
            )
        )
        self.durable = True

    def ask(self, query: PlanQuery) -> None:
        """Ask the planner, unless this very question is the last one asked."""
        if self.transition.query == query:
            return
        self.note(query=query, answer=None, asked_time=self.now.time, answered_time=None)
        self.actions.append(AskPlanner(query=query))

    # -- directives --------------------------------------------------------------------------------

    def send(
        self,
        engine: Engine,
        command: Command,
        *,
        allow_seconds: float,
        attempt: int = 1,
        generation: int | None = None,
        version: int = 0,
    ) -> None:
        """Send a directive, of the newest generation by default.

        It is overdue after `allow_seconds`; `version` is that of a checkpoint's directive.
        """
        number = self.run.num_directives + 1
        generation = self.run.generation if generation is None else generation
        directive = Directive(
            id=f"{self.run.job_id}/{generation}/{number}",
            job_id=self.run.job_id,
            generation=generation,
            engine_id=engine.id,
            node_id=engine.node_id,
            command=command,
        )
        pending = Pending(
            directive_id=directive.id,
            engine_id=engine.id,
            node_id=engine.node_id,
            kind=command.kind,
            deadline_seconds=self.now.seconds + allow_seconds,
            allowed_seconds=allow_seconds,
            num_attempt=attempt,
            version=version,
        )
        self.change(num_directives=number, pending={**self.run.pending, directive.id: pending})
        self.actions.append(Send(directive=directive))

    def drop(self, directive_ids: Iterable[str]) -> None:
        """Forget directives: their results mean nothing any more."""
        dropped = tuple(directive_ids)
        if not dropped:
            return
        kept = {key: p for key, p in self.run.pending.items() if key not in dropped}
        self.change(pending=kept)
        self.actions.append(Drop(directive_ids=dropped))

    def settle(self, directive_id: str) -> None:
        """Take a directive off the list: it has its result."""
        kept = {key: p for key, p in self.run.pending.items() if key != directive_id}
        self.note_run(pending=kept)

    def is_awaiting(self, *kinds: str) -> bool:
        """Whether a directive of one of these kinds has no result yet."""
        return any(pending.kind in kinds for pending in self.run.pending.values())

    def drop_superseded(self) -> None:
        """Forget what an older generation has asked for."""
        self.drop(key for key, p in self.run.pending.items() if p.kind not in _SURVIVES_A_FENCE)

    # -- engines -----------------------------------------------------------------------------------

    def create_engine(self, node_id: str, accelerator: int) -> None:
        """Start an engine on an accelerator."""
        number = self.run.num_engines + 1
        engine = Engine(
            id=make_engine_id(self.run.job_id, node_id, accelerator, number),
            node_id=node_id,
            accelerator=accelerator,
        )
        self.change(num_engines=number, engines={**self.run.engines, engine.id: engine})
        requirements = self.run.requirements
        command = Prepare(
            job_spec=requirements.job_spec,
            accelerator=accelerator,
            job_secret=requirements.job_secret,
            initial_state=self.run.initial_state,
            forward_flops=counted_flops(self.run),
        )
        self.send(engine, command, allow_seconds=self.limits.prepare_seconds)

    def remove_engines(self, engine_ids: Iterable[str]) -> None:
        """Strike engines off the roster, with what they were asked for."""
        gone = frozenset(engine_ids)
        self.change(
            engines={k: e for k, e in self.run.engines.items() if k not in gone},
            failed_links=tuple(
                link
                for link in self.run.failed_links
                if gone.isdisjoint((link.engine_id, link.peer_engine_id))
            ),
        )
        self.drop(key for key, p in self.run.pending.items() if p.engine_id in gone)

    def stop_engines(self, engine_ids: Iterable[str], reason: str) -> None:
        """Strike engines off the roster and end their processes."""
        engines = [self.run.engines[engine_id] for engine_id in engine_ids]
        self.remove_engines(engine.id for engine in engines)
        for engine in engines:
            self.change(stopping={**self.run.stopping, engine.id: engine.node_id})
            self.send(engine, Stop(reason=reason), allow_seconds=self.limits.directive_seconds)

    def forget_stopping(self, engine_id: str) -> None:
        """Forget an engine that was stopping and has ended."""
        others = {key: node for key, node in self.run.stopping.items() if key != engine_id}
        self.change(stopping=others)
        self.drop(key for key, p in self.run.pending.items() if p.engine_id == engine_id)
        self.release_empty_nodes()

    def release_empty_nodes(self) -> None:
        """Give back draining nodes that have no engine any more, and all nodes of an ended job."""
        busy = {engine.node_id for engine in self.run.engines.values()}
        ended = self.run.state.is_terminal
        leaving = self.run.refused.keys() | self.run.left_out.keys()
        kept = {
            node_id: facts
            for node_id, facts in self.run.nodes.items()
            if node_id in busy or not (ended or node_id in self.run.draining or node_id in leaving)
        }
        if kept != self.run.nodes:
            draining = tuple(node_id for node_id in self.run.draining if node_id in kept)
            self.change(nodes=kept, draining=draining)
