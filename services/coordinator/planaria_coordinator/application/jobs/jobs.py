"""What users do with jobs. REST and gRPC are two faces of this class."""

import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from planaria.job import JobSpec
from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.words import counted_of
from planaria_coordinator.application.events import WATCH_PAGE_SIZE, check_position
from planaria_coordinator.application.jobs.submission import read_job_spec, requirements_of
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import GenerationRecord, Page
from planaria_coordinator.application.requests import Request
from planaria_coordinator.application.state import SharedState, wrong_state
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.event import Event
from planaria_coordinator.domain.job.job import Job, JobState, LogLine, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.job.model_profile import plan_nodes, planning_problem
from planaria_coordinator.domain.job.requirements import NodeFacts, Requirements
from planaria_coordinator.domain.job.resume_advice import resume_problem
from planaria_coordinator.domain.job.signals import CancelWanted, PauseWanted, ResumeWanted, Signal
from planaria_coordinator.domain.job.time_account import Activity, TimeAccount
from planaria_coordinator.domain.placement.plan import Plan
from planaria_coordinator.domain.placement.planner_query import PlanAnswer, PlanQuery
from planaria_coordinator.domain.recovery.recovery_record import Recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What came of submitting a job."""

    job: Job
    """With an empty id when it was a dry run."""
    plan: Plan | None
    """On the nodes that are ready now; None while there are too few."""
    reason: str
    """Why this plan, or why none yet, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job at one moment."""

    job: Job
    sequence: int
    """No event of the job up to here is left to be told."""
    events: tuple[Event, ...] = ()
    """Since the view before, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A job that is not stored yet."""

    submission: Submission
    run: JobRun


class Jobs:
    """Submits, reads and changes jobs."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    # -- submitting --------------------------------------------------------------------------------

    async def create(
        self,
        spec: Mapping[str, Any],
        *,
        request_id: str = "",
        dry_run: bool = False,
        resume_job_id: str = "",
    ) -> Submission:
        """Submit a job file; the same request id returns the same job.

        Args:
            spec: the job file.
            request_id: chosen by the caller.
            dry_run: only plan.
            resume_job_id: a job whose newest checkpoint this one begins from, whatever its file
                says; empty for none.

        Raises:
            PlanariaError: INVALID_JOB (metadata `field`), MODEL_DOES_NOT_FIT,
                FAULT_TOLERANCE_IMPOSSIBLE, NOT_ENOUGH_NODES, NOT_ENOUGH_MICROBATCHES,
                SCHEDULER_NOT_FOUND, REQUEST_ID_REUSED, UNAVAILABLE; for `resume_job_id`
                JOB_NOT_FOUND, or INVALID_ARGUMENT while that job has completed no checkpoint.
        """
        job_spec = read_job_spec(spec)
        if resume_job_id:
            folder = await self._checkpoints_of(resume_job_id)
            job_spec = job_spec.model_copy(update={"init_from": folder})
        document = job_spec.to_document()
        if dry_run:
            return (await self._draft(job_spec, document, "")).submission
        return await self._state.carry_out(self._create(job_spec, document, request_id))

    async def _create(
        self, job_spec: JobSpec, document: dict[str, Any], request_id: str
    ) -> Submission:
        job_id = self._state.new_id("job")
        async with self._state.requests.once(request_id, "create_job", document, job_id) as request:
            if request.known is not None:
                job = await self.get(request.known)
                return Submission(job=job, plan=None, reason="submitted before")
            draft = await self._draft(job_spec, document, job_id)
            await self._store(draft, request)
        return draft.submission

    async def _checkpoints_of(self, job_id: str) -> str:
        """Return the folder of a job's checkpoints, one of which at least is complete."""
        run = await self._run(job_id)
        problem = resume_problem(run)
        if problem:
            metadata = {"field": "resume_job_id", "job_id": job_id}
            raise PlanariaError(ErrorReason.INVALID_ARGUMENT, problem, metadata)
        return run.requirements.checkpoint_path

    async def _run(self, job_id: str) -> JobRun:
        """Read the state of a job's machine; that of a job that has ended is only stored."""
        actor = self._state.actors.get(job_id)
        if actor is not None:
            return actor.run
        async with self._state.database.unit_of_work() as work:
            run = await work.runs.get(job_id)
        if run is None:
            raise _not_found(job_id)
        return run

    async def _draft(self, job_spec: JobSpec, document: dict[str, Any], job_id: str) -> "_Draft":
        self._check_scheduler(job_spec.scheduler)
        requirements = requirements_of(job_spec, secrets.token_hex(16))
        answer, reason = await self._first_plan(requirements)
        now = self._state.clock.now()
        job = Job(
            id=job_id,
            name=job_spec.name,
            state=JobState.PENDING,
            steps=requirements.steps,
            spec=document,
            create_time=now,
        )
        run = JobRun(
            job_id=job_id,
            requirements=requirements,
            state=JobState.PENDING,
            time_account=TimeAccount(current=Activity.WAITING, since=now),
            nodes_per_replica=answer.min_nodes if answer else requirements.min_nodes_per_pipeline,
        )
        plan = answer.plan if answer else None
        return _Draft(submission=Submission(job=job, plan=plan, reason=reason), run=run)

    def _check_scheduler(self, scheduler: str) -> None:
        if not self._state.policy.knows(scheduler):
            raise PlanariaError(
                ErrorReason.SCHEDULER_NOT_FOUND,
                f"scheduler: no scheduler named {scheduler} is connected",
                {"scheduler": scheduler},
            )

    async def _first_plan(self, requirements: Requirements) -> tuple[PlanAnswer | None, str]:
        """Return the plan on the cluster as it is: what it cannot do now is refused now."""
        nodes = self._schedulable_nodes()
        if len(nodes) < requirements.min_nodes:
            return None, f"{counted_of(len(nodes), requirements.min_nodes, 'node')} ready"
        if not requirements.layers:
            return None, "the first engines build the model; then its layers are known"
        chosen = nodes[: requirements.max_nodes]
        facts = {node.node_id: node for node in chosen}
        query = PlanQuery(
            problem=planning_problem(requirements, facts), nodes=plan_nodes(facts, facts)
        )
        answer = await self._state.planner.plan(query)
        needed = requirements.nodes_to_start(answer.min_nodes)
        if requirements.max_nodes is not None and requirements.max_nodes < needed:
            possible = requirements.max_nodes // answer.min_nodes - 1
            raise PlanariaError(
                ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE,
                f"resilience.fault_tolerance: {requirements.fault_tolerance} needs {needed} nodes "
                f"and resources.max_nodes is {requirements.max_nodes}: raise that or lower "
                f"resilience.fault_tolerance to {possible}",
                {
                    "fault_tolerance": str(requirements.fault_tolerance),
                    "possible": str(possible),
                },
            )
        return answer, answer.reason

    def _schedulable_nodes(self) -> list[NodeFacts]:
        """Return the nodes that a job could be given now or when others end."""
        return [
            entry.facts
            for entry in sorted(self._state.nodes, key=lambda entry: entry.node.id)
            if entry.node.state is NodeState.READY
        ]

    async def _store(self, drafted: "_Draft", request: Request) -> None:
        state = self._state
        job = drafted.submission.job
        message = f"{job.name} was submitted: {job.steps} steps"
        draft = state.draft("job_submitted", message, job_id=job.id)
        async with state.database.unit_of_work() as work:
            await work.jobs.add(job)
            await work.runs.save(drafted.run)
            await work.events.append([draft])
            await request.remember(work)
            await work.commit()
        state.add_actor(job, drafted.run)
        state.event_changes.notify()
        state.scheduling_wanted.set()

    # -- reading -----------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job:
        """Read a job, its times up to now. Raises JOB_NOT_FOUND."""
        actor = self._state.actors.get(job_id)
        if actor is not None:
            return actor.view()
        async with self._state.database.unit_of_work() as work:
            job = await work.jobs.get(job_id)
        if job is None:
            raise _not_found(job_id)
        return job

    async def list(self, page: PageRequest) -> Page[Job]:
        """List jobs, the newest first; 100 by default, at most 1,000."""
        async with self._state.database.unit_of_work() as work:
            found = await work.jobs.page(page.or_default(100))
        actors = self._state.actors
        items = tuple(actors[job.id].view() if job.id in actors else job for job in found.items)
        return Page(items=items, next_page_token=found.next_page_token)

    def unfinished(self) -> tuple[Job, ...]:
        """Return every job that has not ended, as it is now; asks no database."""
        views = (actor.view() for actor in self._state.actors.values())
        return tuple(job for job in views if not job.state.is_terminal)

    async def plan(self, job_id: str) -> GenerationRecord | None:
        """Read the newest plan; None before the first. Raises JOB_NOT_FOUND."""
        await self.get(job_id)
        async with self._state.database.unit_of_work() as work:
            return await work.generations.newest_planned(job_id)

    async def metrics(self, job_id: str, page: PageRequest) -> Page[StepMetrics]:
        """List committed steps, the oldest first; 1,000 by default."""
        await self.get(job_id)
        async with self._state.database.unit_of_work() as work:
            return await work.step_metrics.page(job_id, page.or_default(1000))

    async def recoveries(self, job_id: str, page: PageRequest) -> Page[Recovery]:
        """List recoveries, the oldest first; 100 by default."""
        await self.get(job_id)
        async with self._state.database.unit_of_work() as work:
            return await work.recoveries.page(job_id, page.or_default(100))

    async def logs(self, job_id: str, page: PageRequest) -> Page[LogLine]:
        """List lines that the job's engines wrote, the oldest first; 1,000 by default."""
        await self.get(job_id)
        async with self._state.database.unit_of_work() as work:
            return await work.log_lines.page(job_id, page.or_default(1000))

    async def watch(self, job_id: str, *, after_sequence: int = 0) -> AsyncIterator[JobView]:
        """Yield the job as it is now, then each time it changes, until it has ended.

        Args:
            job_id: the job.
            after_sequence: where an earlier watch has come to: its events follow without a gap.

        Raises:
            PlanariaError: from the first step of the iteration. JOB_NOT_FOUND, or INVALID_ARGUMENT
                for a sequence number that is yet to come.
        """
        sequence, has_ended = after_sequence, False
        while True:
            actor = self._state.actors.get(job_id)
            count = actor.changes.count if actor is not None else 0
            async with self._state.database.unit_of_work() as work:
                newest = await work.events.newest_sequence()
                check_position(sequence, newest)
                events = tuple(
                    await work.events.after(sequence, job_id=job_id, limit=WATCH_PAGE_SIZE)
                )
            is_last_page = len(events) < WATCH_PAGE_SIZE
            last = events[-1].sequence if events else 0
            sequence = max(newest, last) if is_last_page else last
            job = await self.get(job_id)
            if events or not has_ended:
                yield JobView(job=job, sequence=sequence, events=events)
            if has_ended and is_last_page:
                return
            if job.state.is_terminal or actor is None:
                has_ended = True  # its last events may have been stored after they were read here
            elif is_last_page:
                await actor.changes.beyond(count)

    # -- changing ----------------------------------------------------------------------------------

    async def cancel(self, job_id: str, *, request_id: str = "") -> Job:
        """End a job. Idempotent. Raises JOB_NOT_FOUND or WRONG_STATE."""
        return await self._change(job_id, "cancel_job", request_id, CancelWanted())

    async def pause(self, job_id: str, *, request_id: str = "") -> Job:
        """Pause a job after a commit. Idempotent. Raises JOB_NOT_FOUND, WRONG_STATE."""
        return await self._change(job_id, "pause_job", request_id, PauseWanted())

    async def resume(self, job_id: str, *, request_id: str = "") -> Job:
        """Let a paused job go on. Idempotent. Raises JOB_NOT_FOUND or WRONG_STATE."""
        return await self._change(job_id, "resume_job", request_id, ResumeWanted())

    async def _change(self, job_id: str, method: str, request_id: str, signal: Signal) -> Job:
        async def change() -> None:
            await self._signal(await self.get(job_id), signal)

        state, contents = self._state, {"job_id": job_id}
        await state.carry_out(state.requests.make(request_id, method, contents, job_id, change))
        return await self.get(job_id)

    async def _signal(self, job: Job, signal: Signal) -> None:
        actor = self._state.actors.get(job.id)
        if not job.state.is_terminal and actor is not None:
            await actor.post(signal)
        elif job.state is not JobState.CANCELLED or not isinstance(signal, CancelWanted):
            raise wrong_state(job.id, job.state, "it has ended")


def _not_found(job_id: str) -> PlanariaError:
    return PlanariaError(ErrorReason.JOB_NOT_FOUND, f"there is no job {job_id}", {"job_id": job_id})
