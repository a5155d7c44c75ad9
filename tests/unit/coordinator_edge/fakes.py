"""The application layer, faked: it keeps jobs, nodes and events in dictionaries."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.coordinator import Coordinator
from planaria_coordinator.application.events import check_position
from planaria_coordinator.application.jobs.jobs import JobView, Submission
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import GenerationRecord, Page
from planaria_coordinator.application.statistics import RecoveryTotals, Totals
from planaria_coordinator.domain.engines.node import EngineSnapshot, EngineState, Node, NodeState
from planaria_coordinator.domain.job.event import Event
from planaria_coordinator.domain.job.job import Job, JobState, LogLine, StepMetrics
from planaria_coordinator.domain.placement.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.recovery.recovery_record import Recovery, RecoveryPhase
from support.clock import FakeClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLAN = Plan(
    pipelines=(
        Pipeline(
            stages=(
                Stage(first_layer=0, num_layers=3, node_index=0, node_id="a", accelerators=(0,)),
                Stage(first_layer=3, num_layers=2, node_index=1, node_id="b", accelerators=(0,)),
            ),
            microbatches=(0, 1, 2),
            iteration_seconds=1.5,
            max_microbatches=3,
        ),
    ),
    idle_node_ids=("c",),
    iteration_seconds=1.5,
    fault_tolerance=0,
)
RECOVERY = Recovery(
    job_id="job-1",
    id=1,
    cause="node_lost",
    generation=2,
    start_time=NOON,
    end_time=NOON,
    detect_seconds=0.1,
    fence_seconds=0.15,
    resume_seconds=0.25,
    regrow_seconds=0.5,
    idle_seconds=0.0,
    hit_step=7,
    nodes_lost=("a",),
    phases=(RecoveryPhase(name="detect", start_time=NOON, duration_seconds=0.1),),
    redone_microbatches=4,
    copied_bytes=1000,
    lost_accelerator_seconds={"idle": 0.5},
    pipeline_sizes_before=(2, 2),
    pipeline_sizes_after=(3,),
    reason="shrunk",
)
ItemT = TypeVar("ItemT")


def job(job_id: str = "job-1", **changes: Any) -> Job:
    made = Job(
        id=job_id,
        name="small",
        state=JobState.RUNNING,
        steps=10,
        spec={"training": {"steps": 10}},
        create_time=NOON,
        step=3,
        loss=2.5,
        generation=2,
        tokens_per_second=100.0,
        time_seconds={"productive": 4.0},
    )
    return replace(made, **changes)


def node(node_id: str = "a", **changes: Any) -> Node:
    made = Node(
        id=node_id,
        state=NodeState.READY,
        address="127.0.0.1",
        num_accelerators=1,
        accelerator_kind="cpu",
        accelerator_memory_bytes=2**30,
        agent_id="agent-1",
        agent_pid=42,
        boot_id="boot",
        version="0.1.0",
        labels={"rack": "r1"},
        join_time=NOON,
        heartbeat_time=NOON,
        engines=(
            EngineSnapshot(
                engine_id=f"job-1/{node_id}/0/1",
                job_id="job-1",
                accelerator=0,
                generation=2,
                state=EngineState.TRAINING,
                pid=43,
            ),
        ),
    )
    return replace(made, **changes)


def event(sequence: int, *, job_id: str = "job-1", **changes: Any) -> Event:
    made = Event(
        sequence=sequence,
        time=NOON,
        type="step_done",
        message=f"event {sequence}",
        job_id=job_id,
        details={"number": sequence},
    )
    return replace(made, **changes)


def page_of(items: Sequence[ItemT], page: PageRequest) -> Page[ItemT]:
    start = page.position()
    end = start + (page.page_size or 100)
    return Page(items=tuple(items[start:end]), next_page_token=str(end) if end < len(items) else "")


class FakeJobs:
    def __init__(self) -> None:
        self.stored = {"job-1": job()}
        self.created: list[tuple[Mapping[str, Any], str, bool, str]] = []
        self.changes: list[tuple[str, str, str]] = []
        self.error: Exception | None = None

    async def create(
        self,
        spec: Mapping[str, Any],
        *,
        request_id: str = "",
        dry_run: bool = False,
        resume_job_id: str = "",
    ) -> Submission:
        if self.error is not None:
            raise self.error
        self.created.append((spec, request_id, dry_run, resume_job_id))
        made = job("" if dry_run else "job-2", state=JobState.PENDING, spec=dict(spec), loss=None)
        return Submission(job=made, plan=PLAN, reason="the fastest")

    async def get(self, job_id: str) -> Job:
        if self.error is not None:
            raise self.error
        if job_id not in self.stored:
            raise PlanariaError(
                ErrorReason.JOB_NOT_FOUND, f"there is no job {job_id}", {"job_id": job_id}
            )
        return self.stored[job_id]

    async def list(self, page: PageRequest) -> Page[Job]:
        return page_of(list(self.stored.values()), page)

    def unfinished(self) -> tuple[Job, ...]:
        return tuple(job for job in self.stored.values() if not job.state.is_terminal)

    async def cancel(self, job_id: str, *, request_id: str = "") -> Job:
        return await self._change("cancel", job_id, request_id, JobState.CANCELLED)

    async def pause(self, job_id: str, *, request_id: str = "") -> Job:
        return await self._change("pause", job_id, request_id, JobState.PAUSED)

    async def resume(self, job_id: str, *, request_id: str = "") -> Job:
        return await self._change("resume", job_id, request_id, JobState.RUNNING)

    async def _change(self, verb: str, job_id: str, request_id: str, state: JobState) -> Job:
        self.changes.append((verb, job_id, request_id))
        self.stored[job_id] = replace(await self.get(job_id), state=state)
        return self.stored[job_id]

    async def plan(self, job_id: str) -> GenerationRecord | None:
        await self.get(job_id)
        return GenerationRecord(
            job_id=job_id, generation=2, cause="start", open_time=NOON, plan=PLAN, reason="fastest"
        )

    async def metrics(self, job_id: str, page: PageRequest) -> Page[StepMetrics]:
        steps = [
            StepMetrics(
                job_id=job_id,
                step=number,
                loss=3.0,
                gradient_norm=1.0,
                learning_rate=0.1,
                num_tokens=64,
                step_seconds=0.5,
                generation=1,
                commit_time=NOON,
            )
            for number in range(3)
        ]
        return page_of(steps, page)

    async def recoveries(self, job_id: str, page: PageRequest) -> Page[Recovery]:
        return page_of([RECOVERY], page)

    async def logs(self, job_id: str, page: PageRequest) -> Page[LogLine]:
        line = LogLine(job_id=job_id, engine_id="e", time=NOON, text="hello", sequence=1)
        return page_of([line], page)

    async def watch(self, job_id: str, *, after_sequence: int = 0) -> AsyncIterator[JobView]:
        found = await self.get(job_id)
        seen = event(after_sequence + 1)
        yield JobView(job=found, sequence=after_sequence + 1, events=(seen,))
        yield JobView(job=replace(found, state=JobState.SUCCEEDED), sequence=after_sequence + 3)


class FakeCluster:
    def __init__(self) -> None:
        self.stored = {"a": node("a"), "b": node("b", engines=(), state=NodeState.LOST)}
        self.changes: list[tuple[str, str, str]] = []

    async def list(self, page: PageRequest) -> Page[Node]:
        return page_of(list(self.stored.values()), page)

    def all(self) -> tuple[Node, ...]:
        return tuple(self.stored.values())

    async def get(self, node_id: str) -> Node:
        if node_id not in self.stored:
            raise PlanariaError(
                ErrorReason.NODE_NOT_FOUND, f"there is no node {node_id}", {"node_id": node_id}
            )
        return self.stored[node_id]

    async def cordon(self, node_id: str, *, request_id: str = "") -> Node:
        return await self._change("cordon", node_id, request_id, NodeState.CORDONED)

    async def uncordon(self, node_id: str, *, request_id: str = "") -> Node:
        return await self._change("uncordon", node_id, request_id, NodeState.READY)

    async def drain(self, node_id: str, *, request_id: str = "") -> Node:
        return await self._change("drain", node_id, request_id, NodeState.DRAINING)

    async def evict(self, node_id: str, *, request_id: str = "") -> Node:
        return await self._change("evict", node_id, request_id, NodeState.LOST)

    async def remove(self, node_id: str, *, request_id: str = "") -> None:
        await self._change("remove", node_id, request_id, NodeState.LOST)
        del self.stored[node_id]

    async def _change(self, verb: str, node_id: str, request_id: str, state: NodeState) -> Node:
        self.changes.append((verb, node_id, request_id))
        self.stored[node_id] = replace(await self.get(node_id), state=state)
        return self.stored[node_id]


class FakeEvents:
    """Holds events; `add` tells the watchers."""

    def __init__(self) -> None:
        self.stored = [event(1), event(2, job_id=""), event(3)]
        self._added = asyncio.Event()
        self.num_watchers = 0
        self.watcher_left = asyncio.Event()

    def add(self, added: Event) -> None:
        self.stored.append(added)
        self._added.set()
        self._added = asyncio.Event()

    async def list(self, page: PageRequest, *, job_id: str = "") -> Page[Event]:
        after = page.position()
        found = [e for e in self.stored if e.sequence > after and job_id in ("", e.job_id)]
        size = page.page_size or 1000
        more = len(found) > size
        return Page(
            items=tuple(found[:size]), next_page_token=str(found[size - 1].sequence) if more else ""
        )

    async def check_position(self, after_sequence: int) -> None:
        check_position(after_sequence, max((e.sequence for e in self.stored), default=0))

    async def watch(self, *, after_sequence: int = 0, job_id: str = "") -> AsyncIterator[Event]:
        self.num_watchers += 1
        try:
            while True:
                added = self._added
                page = await self.list(PageRequest(page_token=str(after_sequence)), job_id=job_id)
                for found in page.items:
                    after_sequence = found.sequence
                    yield found
                await added.wait()
        finally:
            self.num_watchers -= 1
            self.watcher_left.set()


class FakeCoordinator:
    """Stands for `planaria_coordinator.application.coordinator.Coordinator`."""

    def __init__(self) -> None:
        self.jobs = FakeJobs()
        self.cluster = FakeCluster()
        self.events = FakeEvents()
        self.not_ready: PlanariaError | None = None

    async def check_ready(self) -> None:
        if self.not_ready is not None:
            raise self.not_ready

    def as_coordinator(self) -> Coordinator:
        return cast(Coordinator, self)


class FakeStatistics:
    async def totals(self) -> Totals:
        return Totals(
            jobs={JobState.RUNNING: 1},
            recoveries={
                "node_lost": RecoveryTotals(
                    count=2,
                    detect_seconds=0.2,
                    fence_seconds=0.3,
                    resume_seconds=0.5,
                    regrow_seconds=1.0,
                    idle_seconds=0.0,
                    lost_seconds=1.5,
                    copied_bytes=1000,
                    redone_microbatches=4,
                )
            },
            num_events=3,
        )


def clock_at(moment: datetime) -> FakeClock:
    return FakeClock(start=moment)
