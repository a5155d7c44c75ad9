"""A session with an agent: what it tells goes to the registry and to the jobs' actors."""

import asyncio
from collections.abc import Sequence
from typing import Any

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.agent_messages import (
    CheckpointReport,
    Echo,
    EngineExited,
    EngineFault,
    HeartbeatReceived,
    Hello,
    LinkFailed,
    LogLines,
    Probe,
    ProbeResult,
    ReportsStored,
    StepReport,
    Welcome,
)
from planaria_coordinator.application.agents.node_registry import NodeEntry
from planaria_coordinator.application.cluster import Cluster
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.directive import Directive, Stop
from planaria_coordinator.domain.engines.links import LinkFailure
from planaria_coordinator.domain.engines.node import EngineSnapshot, EngineState, NodeState
from planaria_coordinator.domain.engines.outcome import DirectiveResult
from planaria_coordinator.domain.job import signals
from planaria_coordinator.domain.job.job import LogLine, StepMetrics
from planaria_coordinator.domain.job.signals import (
    AgentReturned,
    CheckpointReported,
    EngineDisturbed,
    EngineFinished,
    EngineLost,
    HoldersReturned,
    JobFaulted,
    ResultArrived,
    StepCommitted,
)
from planaria_coordinator.domain.job.utilization import model_flops_utilization
from planaria_coordinator.domain.recovery.transition import Phase

_MAX_TAIL_CHARACTERS = 300
_CONTRADICTED_SECONDS = 1.0
"""A heartbeat that comes so long after a report was not sent before the engine ended."""

ToAgent = Directive | ReportsStored | HeartbeatReceived | Echo | Probe

log = get_logger("sessions")


class AgentSession:
    """One session of one agent."""

    def __init__(self, state: SharedState, hello: Hello) -> None:
        self.node_id = hello.node_id
        self.agent_id = hello.agent_id
        self._state = state
        self._outgoing: asyncio.Queue[ToAgent | None] = asyncio.Queue()
        self._ended = False
        self._newest_report = 0
        self._acknowledged_report = 0
        self._draining: asyncio.Task[Any] | None = None

    @property
    def epoch(self) -> int:
        """Of the coordinator; agents take nothing from an earlier one."""
        return self._state.database.epoch

    @property
    def welcome(self) -> Welcome:
        """The answer to the Hello."""
        options = self._state.options
        return Welcome(
            coordinator_id=self._state.coordinator_id,
            epoch=self.epoch,
            heartbeat_interval_seconds=options.heartbeat_interval_seconds,
            agent_lease_seconds=options.agent_lease_seconds,
            progress_deadline_seconds=options.progress_deadline_seconds,
        )

    # -- to the agent ------------------------------------------------------------------------------

    def send(self, directive: Directive) -> None:
        """Queue a directive."""
        self._outgoing.put_nowait(directive)

    def acknowledge(self, report_number: int) -> None:
        """Say that what reports up to this one say is stored."""
        if report_number > self._acknowledged_report:
            self._acknowledged_report = report_number
            self._outgoing.put_nowait(ReportsStored(report_number=report_number))

    def echo(self) -> None:
        """Ask for a heartbeat at once."""
        self._outgoing.put_nowait(Echo())

    def probe(self, probe: Probe) -> None:
        """Ask whether the node reaches another one."""
        self._outgoing.put_nowait(probe)

    async def next_message(self) -> ToAgent | None:
        """Wait for what is to be sent next; None when the session has been replaced."""
        return await self._outgoing.get()

    def end(self) -> None:
        """Let the stream end: another session takes its place."""
        self._ended = True
        self._outgoing.put_nowait(None)

    def attach(self, entry: NodeEntry, engines: tuple[EngineSnapshot, ...]) -> None:
        """Become the node's session."""
        entry.wire = self
        entry.ended_seconds = None
        entry.has_left = False
        entry.peers_lost.clear()
        entry.stops_sent.clear()
        self._state.nodes.beat(entry, engines)
        self._state.dispatcher.attach(self.node_id, self)
        for actor in self._state.holders(self.node_id):
            actor.post(AgentReturned(node_id=self.node_id))
        self._compare(entry)

    def close(self) -> None:
        """The stream has ended: the agent is gone, or only the connection."""
        entry = self._state.nodes.get(self.node_id)
        self._state.dispatcher.detach(self.node_id, self)
        if entry is not None and entry.wire is self:
            entry.wire = None
            entry.ended_seconds = self._state.clock.monotonic()
            unexplained = self._unexplained()
            entry.peers_lost = {e: t for e, t in entry.peers_lost.items() if e in unexplained}
            log.info("session_ended", node_id=self.node_id)
            self._state.nodes.look_wanted.set()

    # -- from the agent ----------------------------------------------------------------------------

    @property
    def unstored_report(self) -> int:
        """Number of the last report that came; 0 when it has been acknowledged."""
        return self._newest_report if self._newest_report > self._acknowledged_report else 0

    def note_report(self, report_number: int) -> None:
        """A report has been passed on; those of other sessions came before it, or come again."""
        self._newest_report = report_number

    def heard(self) -> None:
        """The agent has said something."""
        entry = self._entry()
        if entry is not None:
            self._state.nodes.heard(entry)

    def heartbeat(
        self, engines: tuple[EngineSnapshot, ...], *, wants_to_leave: bool = False
    ) -> None:
        """The node is alive, or is to be drained because its machine is about to go away."""
        entry = self._entry()
        is_drained = entry is not None and entry.node.state is NodeState.DRAINED
        self._outgoing.put_nowait(HeartbeatReceived(may_leave=is_drained))
        if entry is not None:
            self._state.nodes.beat(entry, engines)
            self._contradict(entry)
            self._compare(entry)
            if wants_to_leave and entry.node.state in (NodeState.READY, NodeState.CORDONED):
                self._drain()

    def _drain(self) -> None:
        """The next heartbeat asks again, should it fail."""
        if self._draining is None or self._draining.done():
            draining = Cluster(self._state).drain_leaving(self.node_id)
            self._draining = self._state.run_in_background(draining)

    def leave(self) -> None:
        """The agent has ended its engines and ends itself."""
        entry = self._entry()
        if entry is not None:
            entry.has_left = True
            self._state.nodes.look_wanted.set()

    def result(self, result: DirectiveResult) -> None:
        """A directive has a result."""
        self._state.dispatcher.forget([result.directive_id])
        self._state.note_result(result)
        self._state.post(result.job_id, ResultArrived(result=result))

    def engine_exited(self, exited: EngineExited) -> None:
        """An engine's process ended."""
        entry = self._entry()
        if entry is not None:
            entry.peers_lost.pop(exited.engine_id, None)
        self._state.post(
            exited.job_id,
            EngineLost(
                engine_id=exited.engine_id,
                fault_time=exited.detect_time,
                reason=_end_in_words(exited),
                process_ended=True,
            ),
        )

    def link_failed(self, failed: LinkFailed) -> None:
        """An engine cannot reach a peer: ask the peer's node, and let the job judge the rest."""
        log.info(
            "link_failed",
            engine_id=failed.engine_id,
            peer_engine_id=failed.peer_engine_id,
            kind=failed.failure.value,
        )
        actor = self._state.actors.get(failed.job_id)
        engine = actor.run.engines.get(failed.peer_engine_id) if actor is not None else None
        if actor is None or engine is None or failed.engine_id not in actor.run.engines:
            return  # what an engine of a node that was lost says comes with its next session
        entry = self._state.nodes.get(engine.node_id)
        if entry is not None and failed.failure is LinkFailure.UNREACHABLE:
            self._state.nodes.suspect(entry.node.id)
        elif entry is not None and failed.failure is not LinkFailure.STALLED:
            entry.peers_lost[engine.id] = self._state.clock.monotonic()
            if entry.ended_seconds is not None:
                self._state.nodes.look_wanted.set()
                return
        actor.post(
            signals.LinkFailed(
                engine_id=failed.engine_id,
                peer_engine_id=engine.id,
                failure=failed.failure,
                direction=failed.direction,
                fault_time=failed.detect_time,
            )
        )

    def engine_fault(self, fault: EngineFault) -> None:
        """An engine cannot go on."""
        failure = fault.failure
        if fault.fatal:
            self._state.post(fault.job_id, JobFaulted(engine_id=fault.engine_id, failure=failure))
        elif failure.reason is ErrorReason.UNAVAILABLE:
            self._state.post(
                fault.job_id,
                EngineDisturbed(
                    engine_id=fault.engine_id,
                    generation=fault.generation,
                    message=failure.message,
                    fault_time=fault.detect_time,
                ),
            )
        else:
            self._state.post(
                fault.job_id,
                EngineLost(
                    engine_id=fault.engine_id,
                    fault_time=fault.detect_time,
                    reason=failure.message,
                    process_ended=False,
                ),
            )

    def step_report(self, report: StepReport) -> None:
        """A step was committed."""
        actor = self._state.actors.get(report.job_id)
        if actor is None or report.record.generation < actor.run.restored_generation:
            return
        record = report.record
        actor.note_step(
            StepMetrics(
                job_id=report.job_id,
                step=record.step,
                loss=record.loss if record.num_tokens and not record.num_skipped else None,
                gradient_norm=record.gradient_norm,
                learning_rate=report.learning_rate,
                num_tokens=record.num_tokens,
                step_seconds=report.step_seconds,
                generation=record.generation,
                commit_time=report.commit_time,
                model_flops_utilization=model_flops_utilization(
                    actor.run, record.generation, report.step_seconds
                )
                if record.num_tokens
                else None,
                evaluation_loss=record.evaluation_loss,
                skipped_layer=record.skipped_layer if record.num_skipped else None,
            )
        )
        actor.post(
            StepCommitted(
                record=record, commit_time=report.commit_time, step_seconds=report.step_seconds
            )
        )

    def checkpoint_report(self, report: CheckpointReport) -> None:
        """An engine writes layers of a checkpoint, has written one, or does not write the rest."""
        self._state.post(
            report.job_id,
            CheckpointReported(
                engine_id=report.engine_id, version=report.version, report=report.report
            ),
        )

    def probe_result(self, result: ProbeResult) -> None:
        """The node says whether it reaches another one."""
        self._state.nodes.answered(self.node_id, result.probe_id, result.reach)

    def log_lines(self, lines: LogLines) -> None:
        """An engine wrote lines."""
        self._state.log_lines.extend(
            LogLine(job_id=lines.job_id, engine_id=lines.engine_id, time=lines.read_time, text=text)
            for text in lines.lines
        )

    # -- engines that are counted on, and those that are there -------------------------------------

    def _entry(self) -> NodeEntry | None:
        """Return the node's entry while this is its session."""
        entry = self._state.nodes.get(self.node_id)
        return entry if entry is not None and entry.wire is self else None

    def _contradict(self, entry: NodeEntry) -> None:
        """The agent still has an engine that somebody saw end a while ago: it was the link."""
        latest = self._state.clock.monotonic() - _CONTRADICTED_SECONDS
        entry.peers_lost = {
            engine_id: seconds
            for engine_id, seconds in entry.peers_lost.items()
            if seconds > latest or engine_id not in entry.snapshots
        }

    def _unexplained(self) -> set[str]:
        """Return the engines here that have not ended as far as jobs know.

        A peer may report an end that the agent has reported already.
        """
        runs = [actor.run for actor in self._state.holders(self.node_id)]
        return {engine_id for run in runs for engine_id in (*run.engines, *run.stopping)}

    def _tell_of_absent(self, entry: NodeEntry, actor: JobActor) -> None:
        """Say which engines that a job has lost are back with their node, and which are gone."""
        known = actor.run.absent
        absent = [e for e in actor.absent_on(self.node_id) if not known[e].is_back]
        back = tuple(e for e in absent if e in entry.snapshots)
        for engine_id in absent:
            if engine_id not in back:
                actor.post(self._no_longer_there(engine_id))
        if back:
            actor.post(HoldersReturned(node=entry.facts, engine_ids=back))

    def _no_longer_there(self, engine_id: str) -> EngineLost:
        return EngineLost(
            engine_id=engine_id,
            fault_time=self._state.clock.now(),
            reason="its agent no longer has it",
            process_ended=True,
        )

    def _compare(self, entry: NodeEntry) -> None:
        """Stop engines that nobody counts on; those counted on that are missing have exited."""
        required_engines: set[str] = set()
        for actor in self._state.holders(self.node_id):
            run = actor.run
            self._tell_of_absent(entry, actor)
            mine = actor.engines_on(self.node_id)
            required_engines.update((engine.id for engine in mine), run.stopping, run.absent)
            for engine in mine:
                if engine.prepared and engine.id not in entry.snapshots:
                    actor.post(self._no_longer_there(engine.id))
        strangers: list[EngineSnapshot] = []
        for snapshot in entry.snapshots.values():
            if snapshot.engine_id not in required_engines:
                strangers.append(snapshot)
            elif snapshot.state is EngineState.FINISHED:
                self._finished(snapshot)
        strangers = [each for each in strangers if each.engine_id not in entry.stops_sent]
        if strangers:
            entry.stops_sent.update(each.engine_id for each in strangers)
            self._state.run_in_background(self._stop_strangers(entry, strangers))

    async def _stop_strangers(self, entry: NodeEntry, strangers: Sequence[EngineSnapshot]) -> None:
        """Stop engines of no job that we know: that there is none, only the newest can say."""
        try:
            await self._state.database.check_leadership()
        except PlanariaError:
            entry.stops_sent.difference_update(each.engine_id for each in strangers)
            raise
        for snapshot in strangers:
            self.send(
                Directive(
                    id=f"stop/{snapshot.engine_id}/{self._state.coordinator_id}",
                    job_id=snapshot.job_id,
                    generation=snapshot.generation,
                    engine_id=snapshot.engine_id,
                    node_id=self.node_id,
                    command=Stop(reason="no job counts on it any more"),
                )
            )

    def _finished(self, snapshot: EngineSnapshot) -> None:
        actor = self._state.actors.get(snapshot.job_id)
        transition = actor.run.transition if actor is not None else None
        if actor is not None and (transition is None or transition.phase is Phase.PREPARING):
            actor.post(EngineFinished(engine_id=snapshot.engine_id))


def _end_in_words(exited: EngineExited) -> str:
    if exited.exit_code is None:
        return "its process ended"
    if exited.exit_code < 0:
        return f"its process was ended by signal {-exited.exit_code}"
    tail = f": {exited.log_tail[-1][:_MAX_TAIL_CHARACTERS]}" if exited.log_tail else ""
    return f"its process ended with code {exited.exit_code}{tail}"
