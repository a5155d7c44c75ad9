"""What happens by the clock: deadlines, silence, engines that hang, batches to write."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from planaria_common.logging import get_logger
from planaria_coordinator.application.agents.node_updates import send_node_updates
from planaria_coordinator.application.agents.silent_nodes import SilentNodes
from planaria_coordinator.application.jobs.job_actor import JobActor
from planaria_coordinator.application.state import SharedState
from planaria_coordinator.domain.engines.node import EngineSnapshot
from planaria_coordinator.domain.engines.progress import (
    Progress,
    observe_progress,
    progress_deadline_seconds,
)
from planaria_coordinator.domain.engines.silence import PROBE_ANSWER_SECONDS
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.model_profile import measured_layers, slowest_stage_seconds
from planaria_coordinator.domain.job.signals import EnginesStuck, Stalled, Tick

TICK_SECONDS = 0.1
LEAST_TICK_SECONDS = 0.01
"""Between two ticks when nodes are silent and every answer counts."""
FLUSH_SECONDS = 0.5

log = get_logger("supervision")


class Supervisor:
    """Looks at the clock for everybody."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._silent_nodes = SilentNodes(state)
        self._last_tick_seconds = state.clock.monotonic()
        self._progress: dict[str, Progress] = {}
        self._patience: dict[str, tuple[int, float]] = {}
        """By job: its losses when it last made no progress, and how many times longer it may."""
        self._flushed_heartbeats: dict[str, datetime] = {}

    async def serve_ticks(self) -> None:
        """Tick for ever; nothing that fails once stops it."""
        look_wanted = self._state.nodes.look_wanted
        while True:
            await asyncio.sleep(LEAST_TICK_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(look_wanted.wait(), TICK_SECONDS - LEAST_TICK_SECONDS)
            look_wanted.clear()
            try:
                await self.tick()
            except Exception as error:
                log.warning("tick_failed", cause=str(error))

    async def serve_flushes(self) -> None:
        """Write what has gathered, for ever."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
            except Exception as error:
                log.warning("flush_failed", cause=str(error))

    # -- ticks -------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Act on what the time is."""
        now = self._state.clock.monotonic()
        stall_seconds = now - self._last_tick_seconds - TICK_SECONDS
        self._last_tick_seconds = now
        if stall_seconds > self._state.options.node_deadline_seconds / 2:
            self._forgive(stall_seconds)
        elif stall_seconds > PROBE_ANSWER_SECONDS / 2:
            self._state.nodes.excuse(stall_seconds)
        again_seconds = self._state.schedule_again_seconds
        if again_seconds is not None and again_seconds <= now:
            self._state.schedule_again_seconds = None
            self._state.scheduling_wanted.set()
        await self._silent_nodes.watch()
        absent = frozenset(self._silent_nodes.absent)
        for actor in tuple(self._state.actors.values()):
            due = actor.run.next_deadline_seconds()
            if due is not None and due <= now:
                actor.post(Tick(absent_nodes=absent))
            self._watch_progress(actor, now)
            if actor.missed_a_signal:
                actor.missed_a_signal = False
                send_node_updates(self._state, actor)
        self._forget_jobs()

    def _forget_jobs(self) -> None:
        """Those that have ended, often between two ticks."""
        actors = self._state.actors
        self._progress = {k: v for k, v in self._progress.items() if k in actors}
        self._patience = {k: v for k, v in self._patience.items() if k in actors}
        self._silent_nodes.stalled_jobs &= actors.keys()

    def _forgive(self, seconds: float) -> None:
        log.warning("stalled", seconds=round(seconds, 3))
        self._state.nodes.grant_grace()
        self._progress.clear()
        for actor in self._state.actors.values():
            actor.post(Stalled(seconds=seconds))

    def _watch_progress(self, actor: JobActor, now: float) -> None:
        run, stalled_jobs = actor.run, self._silent_nodes.stalled_jobs
        stalled_jobs.discard(actor.job_id)
        if not run.trains or run.placement is None:
            self._progress.pop(actor.job_id, None)
            if self._waits_for_silent(run, now):
                stalled_jobs.add(actor.job_id)
            return
        snapshots = self._snapshots(actor)
        counts = {
            engine_id: snapshots[engine_id].progress
            for engine_id in run.placement.engine_ids
            if engine_id in snapshots
        }
        if not counts:
            return
        known, generation = self._progress.get(actor.job_id), run.placement.generation
        seen = observe_progress(now, known, generation, counts)
        self._progress[actor.job_id] = seen
        stalled_seconds = now - seen.since_seconds
        node_deadline_seconds = self._state.options.node_deadline_seconds
        if stalled_seconds <= node_deadline_seconds:
            return  # in most cases there is no need to work out the deadlines of a job
        if stalled_seconds > self._progress_deadline(actor, node_deadline_seconds):
            stalled_jobs.add(actor.job_id)  # for a node that is silent
        if len(counts) < len(run.placement.engine_ids):
            return  # somebody is not heard, and may be what the others wait for
        if stalled_seconds > self._progress_deadline(actor, self._least_seconds):
            del self._progress[actor.job_id]
            self._lose_patience(actor)
            actor.post(EnginesStuck(seconds=stalled_seconds))

    def _waits_for_silent(self, run: JobRun, now: float) -> bool:
        """Whether a change of the plan lacks only answers of nodes that are away or silent."""
        overdue_since = now - self._state.options.node_deadline_seconds
        return any(
            pending.deadline_seconds < overdue_since
            and pending.node_id in self._silent_nodes.absent
            for pending in run.pending.values()
        )

    def _snapshots(self, actor: JobActor) -> Mapping[str, EngineSnapshot]:
        expected = actor.run.nodes.keys() - self._silent_nodes.absent
        heard = filter(None, map(self._state.nodes.get, expected))
        return {k: s for entry in heard for k, s in entry.snapshots.items()}

    def _progress_deadline(self, actor: JobActor, least_seconds: float) -> float:
        run = actor.run
        layers = measured_layers(run.requirements.layers, run.engines.values())
        stages = run.placement.plan.stages if run.placement else ()
        _, factor = self._patience.get(actor.job_id, (0, 1.0))
        return factor * progress_deadline_seconds(
            slowest_stage_seconds(layers, stages),
            run.last_step_seconds,
            least_seconds=least_seconds,
        )

    @property
    def _least_seconds(self) -> float:
        """Return how long a job may make no progress.

        By then an engine that hangs has said so, and one that is silent was ended by its agent:
        what is left is that all wait for each other.
        """
        options = self._state.options
        return options.progress_deadline_seconds + options.node_deadline_seconds

    def _lose_patience(self, actor: JobActor) -> None:
        """When a fence found nobody hanging, the job is slow: wait twice as long the next time."""
        losses, factor = self._patience.get(actor.job_id, (-1, 1.0))
        same = losses == actor.run.num_faults
        self._patience[actor.job_id] = (actor.run.num_faults, 2 * factor if same else 1.0)

    # -- flushes -----------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Write steps, heartbeats, log lines and results in batches, and acknowledge reports."""
        state = self._state
        num_told = len(state.results)
        wires = [entry.wire for entry in state.nodes if entry.wire is not None]
        newest_reports = [(wire, number) for wire in wires if (number := wire.unstored_report)]
        undecided = [a.job_id for a in tuple(state.actors.values()) if not await a.flush()]
        if undecided:
            newest_reports = []  # with one of the next flushes
        # A directive that is resolved is not repeated: first what follows from it is stored.
        reported, newer = state.results[:num_told], state.results[num_told:]
        results = [result for result in reported if result.job_id not in undecided]
        state.results = [result for result in reported if result.job_id in undecided] + newer
        lines, state.log_lines = state.log_lines, []
        heartbeats = {entry.node.id: entry.node.heartbeat_time for entry in state.nodes}
        times = dict(heartbeats.items() - self._flushed_heartbeats.items())
        if not (lines or results or times or newest_reports):
            return
        try:
            async with state.database.unit_of_work() as work:
                if lines:
                    await work.log_lines.append(lines)
                for result in results:
                    await work.directives.resolve(result.directive_id)
                if times:
                    await work.nodes.save_heartbeats(times)
                await work.commit()
        except Exception:
            state.log_lines = lines + state.log_lines
            state.results = results + state.results
            raise
        self._flushed_heartbeats = heartbeats
        for wire, report_number in newest_reports:
            wire.acknowledge(report_number)
