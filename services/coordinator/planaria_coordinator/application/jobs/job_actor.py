"""One actor per job: takes signals one after another, decides, persists, then acts."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from planaria_common.errors import ErrorReason, InvalidArgumentError, PlanariaError
from planaria_common.logging import get_logger
from planaria_coordinator.application.changes import Changes
from planaria_coordinator.application.jobs.actor_dependencies import ActorDependencies
from planaria_coordinator.application.jobs.lost_time import LostTimeMeter
from planaria_coordinator.application.jobs.projection import NUM_STEPS_FOR_RATE, project
from planaria_coordinator.application.ports import (
    GenerationRecord,
    PolicyView,
    UnitOfWork,
)
from planaria_coordinator.application.scheduling.ask_for_plan import ask_for_plan, refused
from planaria_coordinator.application.scheduling.contingencies import Contingencies
from planaria_coordinator.domain.engines.engine import Engine
from planaria_coordinator.domain.job.actions import (
    Action,
    AskPlanner,
    Drop,
    Emit,
    ForgetSteps,
    RecordRecovery,
    SaveGeneration,
    Send,
)
from planaria_coordinator.domain.job.decide import decide
from planaria_coordinator.domain.job.event import EventDraft
from planaria_coordinator.domain.job.job import Job, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun, Moment
from planaria_coordinator.domain.job.model_profile import relative_speeds
from planaria_coordinator.domain.job.own_faults import give_up, start_over
from planaria_coordinator.domain.job.signals import (
    Restarted,
    Signal,
    Stalled,
    StillWaits,
    seen_together,
)
from planaria_coordinator.domain.job.turn import Decision
from planaria_coordinator.domain.placement.ask_planner import contingency_query
from planaria_coordinator.domain.placement.planner_query import PlanQuery

MAX_BATCH = 256
"""Signals that are stored together: a large job's engines answer all at once."""

FORGIVEN_STORE_SECONDS = 0.5
"""To store a decision takes milliseconds; directives, which wait for that, have seconds."""

log = get_logger("job")


class JobActor:
    """Owns the state of one job; nobody else changes it."""

    def __init__(
        self,
        *,
        job: Job,
        run: JobRun,
        dependencies: ActorDependencies,
        newest: Sequence[StepMetrics] = (),
    ) -> None:
        self.run = run
        self.changes = Changes()
        self.missed_a_signal = False
        """Whether a defect kept one from being decided on: a node may be lost, or to be freed."""
        self._job = job
        self._dependencies = dependencies
        self._newest: deque[StepMetrics] = deque(newest, maxlen=NUM_STEPS_FOR_RATE)
        self._new_steps: dict[int, StepMetrics] = {}
        self._not_stored = ""
        """Why the job's newest decision is not in the database yet."""
        self._signals: asyncio.Queue[tuple[Signal, asyncio.Future[None]]] = asyncio.Queue()
        self._newest_signal: asyncio.Future[None] | None = None
        self._storing = asyncio.Lock()
        self._serving: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._contingencies = Contingencies(
            job_id=job.id,
            planner=dependencies.planner,
            retry_seconds=dependencies.options.planner_retry_seconds,
        )
        self._lost_time = LostTimeMeter(dependencies.database, job.id)
        self._num_open = 0
        self._indexed: Mapping[str, Engine] = {}
        self._engines_by_node: dict[str, list[Engine]] = {}

    # -- what others may ask -----------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        return self._job.id

    @property
    def is_idle(self) -> bool:
        """Whether every signal has been dealt with and no answer of the planner is awaited."""
        asking = self._asking is not None and not self._asking.done()
        return self._num_open == 0 and not asking

    def engines_on(self, node_id: str) -> Sequence[Engine]:
        """Return the job's engines on a node: asked for every heartbeat of every node."""
        engines = self.run.engines
        if engines is not self._indexed:
            self._indexed, self._engines_by_node = engines, {}
            for engine in engines.values():
                self._engines_by_node.setdefault(engine.node_id, []).append(engine)
        return self._engines_by_node.get(node_id, ())

    def holds(self, node_id: str) -> bool:
        """Whether no other job may have a node."""
        run = self.run
        is_held = node_id in run.nodes or node_id in run.stopping.values()
        return is_held or bool(self.engines_on(node_id)) or bool(self.absent_on(node_id))

    def absent_on(self, node_id: str) -> Sequence[str]:
        """Return the engines of a node that the job has lost, and that may come back with it."""
        return [e for e, h in self.run.absent.items() if h.node.node_id == node_id]

    def view(self) -> Job:
        """Return the job as users see it now."""
        job = self._projected()
        conditions = (*job.conditions, *self._dependencies.conditions(self.run.held_nodes))
        job = replace(job, conditions=conditions)
        return replace(job, waiting_reason=self._not_stored) if self._not_stored else job

    def _projected(self) -> Job:
        return project(self._job, self.run, self._newest, self._dependencies.clock.now())

    def policy_view(self) -> PolicyView:
        """Return what a scheduler is shown with every question about this job."""
        return PolicyView(
            job=self.view(),
            nodes=self._dependencies.all_nodes(),
            jobs=self._dependencies.jobs_with_nodes(),
            relative_speeds=relative_speeds(self.run.prepared_engines.values()),
        )

    def start(self) -> None:
        """Begin to take signals."""
        self._serving = asyncio.create_task(self._serve(), name=f"job {self.job_id}")

    async def stop(self) -> None:
        """Take no more signals; what was decided is in the database."""
        self._contingencies.stop()
        for task in (self._asking, self._serving):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def post(self, signal: Signal) -> asyncio.Future[None]:
        """Queue a signal; the future is done when what follows from it has been carried out."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_open += 1
        self._newest_signal = done
        self._signals.put_nowait((signal, done))
        return done

    def note_step(self, metrics: StepMetrics) -> None:
        """Keep a committed step until the next flush; every pipeline reports it, one is enough.

        One that is sent again may be an old one, and may be in the database already.
        """
        if any(known.step == metrics.step for known in self._newest):
            return
        self._new_steps.setdefault(metrics.step, metrics)
        if not self._newest or metrics.step > self._newest[-1].step:
            self._newest.append(metrics)
        self.changes.notify()

    async def flush(self) -> bool:
        """Write the steps since the last flush, and the job as it is.

        Returns:
            whether everything that came before outlives the coordinator now: these steps are
            stored, and the signals have been decided on.
        """
        self._plan_contingencies()
        newest_signal = self._newest_signal
        if self._new_steps:
            # Urgent as a decision is, which waits for `_storing` meanwhile.
            async with self._storing, self._dependencies.database.unit_of_work(urgent=True) as work:
                steps = await self._write_steps(work)
                await work.jobs.save(self._projected())
                await work.commit()
                self._forget_steps(steps)
            await self._measure_lost_time()
        elif self.run.state.is_terminal:
            await self._measure_lost_time()
        return newest_signal is None or newest_signal.done()

    async def _measure_lost_time(self) -> None:
        """A figure that cannot be made keeps nothing else from being stored."""
        if not self._newest:
            return
        has_ended = self.run.state.is_terminal
        try:
            if await self._lost_time.measure(self._newest[-1].step, has_ended=has_ended):
                self.changes.notify()
        except Exception as error:
            log.warning("lost_time_not_measured", job_id=self.job_id, cause=str(error))

    async def _write_steps(self, work: UnitOfWork) -> Sequence[StepMetrics]:
        steps = tuple(self._new_steps.values())
        await work.step_metrics.add(steps)
        return steps

    def _forget_steps(self, steps: Iterable[StepMetrics]) -> None:
        for metrics in steps:
            del self._new_steps[metrics.step]

    # -- the loop ----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            batch = [await self._signals.get()]
            while not self._signals.empty() and len(batch) < MAX_BATCH:
                batch.append(self._signals.get_nowait())
            try:
                await self._handle([signal for signal, _ in batch])
            except Exception:
                # What is stored may not have been sent: begin again from there, as at a start.
                log.exception("job_interrupted", job_id=self.job_id)
                await asyncio.sleep(self._dependencies.options.store_retry_seconds)
                self.post(Restarted())
            finally:
                self._num_open -= len(batch)
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)

    async def _handle(self, signals: Sequence[Signal]) -> None:
        """Decide on some signals one after another, and store once for all of them."""
        num_refusals, refusal = 0, ""
        while True:
            decide_seconds = self._now.seconds
            decision = self._decide(signals)
            if num_refusals >= self._dependencies.options.limits.num_attempts:
                decision = self._give_up(refusal)
            if not decision.durable and not decision.actions:
                self.run, self._not_stored = decision.run, ""
                return
            try:
                await self._store(decision)
                self._not_stored = ""
                break
            except Exception as error:
                # Nothing was sent: the signals are decided on again.
                log.warning("decision_not_stored", job_id=self.job_id, cause=str(error))
                self._not_stored = f"a decision cannot be stored: {error}"
                self.changes.notify()
                if isinstance(error, InvalidArgumentError):
                    num_refusals, refusal = num_refusals + 1, error.message
                await asyncio.sleep(self._dependencies.options.store_retry_seconds)
        self._forgive(self._now.seconds - decide_seconds)
        self._act(decision.actions)
        self.changes.notify()
        # What the scheduler said itself gives it nothing to do: it would ask and say for ever.
        if not all(isinstance(signal, StillWaits) for signal in signals):
            self._dependencies.decided(self)

    def _forgive(self, seconds: float) -> None:
        """Count no deadline while a slow database kept directives from being sent."""
        if seconds > FORGIVEN_STORE_SECONDS:
            log.warning("stored_late", job_id=self.job_id, seconds=round(seconds, 3))
            self.run = self._decide_one(self._now, self.run, Stalled(seconds=seconds)).run

    def _decide(self, signals: Sequence[Signal]) -> Decision:
        now = self._now
        whole = Decision(run=self.run)
        for signal in seen_together(signals):
            decision = self._decide_one(now, whole.run, signal)
            whole = Decision(
                run=decision.run,
                actions=(*whole.actions, *decision.actions),
                reason=decision.reason,
                durable=whole.durable or decision.durable,
            )
        return whole

    def _decide_one(self, now: Moment, run: JobRun, signal: Signal) -> Decision:
        limits = self._dependencies.options.limits
        try:
            decision = decide(now, run, signal, limits)
        except Exception as error:
            log.exception("decision_failed", job_id=self.job_id, signal=type(signal).__name__)
            detail = f"{type(error).__name__} at {type(signal).__name__}"
            self.missed_a_signal = True
            try:
                return start_over(now, run, detail, limits)
            except Exception:  # whatever comes next is decided on from here
                log.exception("decision_dropped", job_id=self.job_id)
                return Decision(run=run)
        if decision.reason:
            log.info(
                "decided",
                job_id=self.job_id,
                generation=decision.run.generation,
                signal=type(signal).__name__,
                reason=decision.reason,
            )
        return decision

    def _give_up(self, refusal: str) -> Decision:
        """Fail the job, whose own data the database refuses."""
        return give_up(self._now, self.run, refusal, self._dependencies.options.limits)

    @property
    def _now(self) -> Moment:
        clock = self._dependencies.clock
        return Moment(seconds=clock.monotonic(), time=clock.now())

    async def _store(self, decision: Decision) -> None:
        async with self._storing, self._dependencies.database.unit_of_work(urgent=True) as work:
            sent = [a.directive for a in decision.actions if isinstance(a, Send)]
            if sent:
                await work.directives.add(sent)
            for action in decision.actions:
                await self._write(work, action)
            events = [a.event for a in decision.actions if isinstance(a, Emit)]
            if events:
                await work.events.append(events)
            job = project(self._job, decision.run, self._newest, self._dependencies.clock.now())
            await work.jobs.save(job)
            await work.runs.save(decision.run)
            # After the end no engine is left to report steps again.
            has_ended = decision.run.state.is_terminal
            steps = await self._write_steps(work) if has_ended else ()
            await work.commit()
            self._forget_steps(steps)
            self.run = decision.run
        for action in decision.actions:
            if isinstance(action, RecordRecovery):
                self._lost_time.note(action.recovery)
            elif isinstance(action, ForgetSteps):
                kept = [each for each in self._newest if each.step < action.first_step]
                self._newest = deque(kept, maxlen=NUM_STEPS_FOR_RATE)
                self._new_steps = {
                    k: s for k, s in self._new_steps.items() if k < action.first_step
                }

    async def _write(self, work: UnitOfWork, action: Action) -> None:
        match action:
            case SaveGeneration():
                await work.generations.save(
                    GenerationRecord(
                        job_id=self.job_id,
                        generation=action.generation,
                        cause=action.cause,
                        open_time=action.open_time,
                        plan=action.plan,
                        reason=action.reason,
                    )
                )
            case RecordRecovery():
                await work.recoveries.save(action.recovery)
            case Drop():
                await work.directives.drop(action.directive_ids)
            case ForgetSteps():
                await work.step_metrics.forget(self.job_id, action.first_step)
            case _:
                pass

    def _act(self, actions: Sequence[Action]) -> None:
        """Tell others, after everything is in the database."""
        dropped = {
            i for action in actions if isinstance(action, Drop) for i in action.directive_ids
        }
        self._dependencies.dispatcher.forget(dropped)
        for action in actions:
            match action:
                case Send(directive=directive) if directive.id not in dropped:
                    self._dependencies.dispatcher.send(directive)
                case AskPlanner(query=query):
                    self._ask(query)
                case Emit(event=event):
                    log.info(event.type, job_id=self.job_id, message=event.message)
                case _:
                    pass
        if any(isinstance(action, Emit) for action in actions):
            self._dependencies.event_changes.notify()
        self._plan_contingencies()

    # -- the planner -------------------------------------------------------------------------------

    def _ask(self, query: PlanQuery) -> None:
        """Ask in the background; only the newest question matters."""
        if self._asking is not None:
            self._asking.cancel()
        self._asking = asyncio.create_task(self._plan(query), name=f"plan {self.job_id}")

    def _plan_contingencies(self) -> None:
        """Have plans made for every single loss from the present plan, in the background."""
        present = contingency_query(self.run, self._dependencies.clock.now())
        if present is None:
            self._contingencies.stop()
        else:
            self._contingencies.ask(present)

    async def _plan(self, query: PlanQuery) -> None:
        dependencies = self._dependencies
        try:
            answer = await ask_for_plan(
                query,
                planner=dependencies.planner,
                policy=dependencies.policy,
                scheduler=str(self._job.spec.get("scheduler", "default")),
                view=self.policy_view,
                min_fault_tolerance=self.run.requirements.least_fault_tolerance,
                tell=self.tell,
                retry_seconds=dependencies.options.planner_retry_seconds,
                known=self._contingencies.answer_to(query),
            )
        except Exception as error:  # a defect; without an answer the job would wait for ever
            log.exception("planning_failed", job_id=self.job_id)
            message = f"{type(error).__name__}: {error}"
            self.post(refused(query, PlanariaError(ErrorReason.INTERNAL, message)))
            return
        self.post(answer)

    async def tell(self, event_type: str, message: str) -> None:
        """Make an event of the job that is not part of a decision."""
        draft = EventDraft(
            time=self._dependencies.clock.now(),
            type=event_type,
            message=message,
            job_id=self.job_id,
            generation=self.run.generation,
        )
        try:
            async with self._dependencies.database.unit_of_work() as work:
                await work.events.append([draft])
                await work.commit()
        except PlanariaError as error:
            log.warning("event_not_stored", type=event_type, cause=str(error))
        self._dependencies.event_changes.notify()
