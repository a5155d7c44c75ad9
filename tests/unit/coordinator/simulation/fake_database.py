"""A database in memory that keeps the promises of its port, and can fail."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from pydantic import TypeAdapter

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import (
    GenerationRecord,
    Page,
    RequestRecord,
    UnitOfWork,
)
from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.engines.node import Node
from planaria_coordinator.domain.job.event import Event, EventDraft
from planaria_coordinator.domain.job.job import Job, LogLine, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.recovery.recovery_record import Recovery

T = TypeVar("T")
_RUN = TypeAdapter(JobRun)
DIRECTIVE = TypeAdapter(Directive)


@dataclass(slots=True)
class Tables:
    """Everything that is committed; documents are stored as the JSON a database would hold."""

    jobs: dict[str, Job] = field(default_factory=dict)
    runs: dict[str, bytes] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    generations: dict[tuple[str, int], GenerationRecord] = field(default_factory=dict)
    directives: dict[str, bytes] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    steps: dict[tuple[str, int], StepMetrics] = field(default_factory=dict)
    lines: list[LogLine] = field(default_factory=list)
    requests: dict[str, RequestRecord] = field(default_factory=dict)

    def copy(self) -> "Tables":
        return Tables(**{name: copy.copy(getattr(self, name)) for name in self.__slots__})


class FakeDatabase:
    """Transactions one after another; what is not committed never was."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.epoch = 0
        self.num_failing_commits = 0
        self.refusals: list[Exception] = []
        """Raised by the next commits."""
        self.on_event: Callable[[Event], None] = lambda _event: None
        self._lock = asyncio.Lock()

    def open(self) -> "OpenDatabase":
        """Return it as a coordinator has it, which replaces the one before."""
        self.epoch += 1
        return OpenDatabase(self, self.epoch)

    @asynccontextmanager
    async def unit_of_work(self, *, epoch: int | None = None) -> AsyncIterator["FakeWork"]:
        async with self._lock:
            yield FakeWork(self, epoch)

    def check(self, epoch: int | None) -> None:
        if epoch not in (None, self.epoch):
            raise PlanariaError(ErrorReason.NOT_LEADER, "another coordinator opened the database")


class OpenDatabase:
    """The database as one coordinator sees it."""

    def __init__(self, database: FakeDatabase, epoch: int) -> None:
        self.epoch = epoch
        self._database = database

    def unit_of_work(self, *, urgent: bool = False) -> AbstractAsyncContextManager["FakeWork"]:
        return self._database.unit_of_work(epoch=self.epoch)

    async def check_leadership(self) -> None:
        self._database.check(self.epoch)

    async def ping(self) -> None:
        if self._database.num_failing_commits:
            raise PlanariaError(ErrorReason.UNAVAILABLE, "no database", {"part": "database"})


class FakeWork(UnitOfWork):
    """One transaction; every repository in one class, told apart by views."""

    def __init__(self, database: FakeDatabase, epoch: int | None) -> None:
        self._database = database
        self._epoch = epoch
        self.tables = database.tables.copy()
        self.jobs = _Jobs(self.tables)
        self.runs = _Runs(self.tables)
        self.nodes = _Nodes(self.tables)
        self.generations = _Generations(self.tables)
        self.directives = _Directives(self.tables)
        self.events = _Events(self.tables)
        self.recoveries = _Recoveries(self.tables)
        self.step_metrics = _Steps(self.tables)
        self.log_lines = _Lines(self.tables)
        self.requests = _Requests(self.tables)

    async def commit(self) -> None:
        await asyncio.sleep(0)  # a real commit lets others run
        self._database.check(self._epoch)
        if self._database.refusals:
            raise self._database.refusals.pop(0)
        if self._database.num_failing_commits:
            self._database.num_failing_commits -= 1
            raise PlanariaError(ErrorReason.UNAVAILABLE, "disk full", {"part": "database"})
        new = self.tables.events[len(self._database.tables.events) :]
        self._database.tables = self.tables.copy()
        for event in new:
            self._database.on_event(event)
        await asyncio.sleep(0)  # who waits for it may be cancelled though all is stored


class _Table:
    def __init__(self, tables: Tables) -> None:
        self.t = tables


def _page(items: Sequence[T], page: PageRequest) -> Page[T]:
    start, end = page.position(), page.position() + page.page_size
    return Page(
        items=tuple(items[start:end]),
        next_page_token=str(end) if len(items) > end else "",
    )


class _Jobs(_Table):
    async def add(self, job: Job) -> None:
        assert job.id not in self.t.jobs
        self.t.jobs[job.id] = job

    async def get(self, job_id: str) -> Job | None:
        return self.t.jobs.get(job_id)

    async def save(self, job: Job) -> None:
        assert job.id in self.t.jobs
        self.t.jobs[job.id] = job

    async def page(self, page: PageRequest) -> Page[Job]:
        return _page(list(self.t.jobs.values())[::-1], page)

    async def unfinished(self) -> Sequence[Job]:
        return [job for job in self.t.jobs.values() if not job.state.is_terminal]


class _Runs(_Table):
    async def get(self, job_id: str) -> JobRun | None:
        document = self.t.runs.get(job_id)
        return None if document is None else _RUN.validate_json(document)

    async def save(self, run: JobRun) -> None:
        self.t.runs[run.job_id] = _RUN.dump_json(run)


class _Nodes(_Table):
    async def save(self, node: Node) -> None:
        self.t.nodes[node.id] = replace(node, engines=())

    async def remove(self, node_id: str) -> None:
        del self.t.nodes[node_id]

    async def all(self) -> Sequence[Node]:
        return [self.t.nodes[node_id] for node_id in sorted(self.t.nodes)]

    async def save_heartbeats(self, times: Mapping[str, datetime]) -> None:
        for node_id, time in times.items():
            self.t.nodes[node_id] = replace(self.t.nodes[node_id], heartbeat_time=time)


class _Generations(_Table):
    async def save(self, record: GenerationRecord) -> None:
        newest = max((g for job, g in self.t.generations if job == record.job_id), default=0)
        assert record.generation >= newest, "generations only grow [4]"
        self.t.generations[record.job_id, record.generation] = record

    async def newest_planned(self, job_id: str) -> GenerationRecord | None:
        planned = [r for (job, _), r in self.t.generations.items() if job == job_id and r.plan]
        return planned[-1] if planned else None


class _Directives(_Table):
    async def add(self, directives: Sequence[Directive]) -> None:
        for directive in directives:
            assert directive.id not in self.t.directives, "a directive's id is used once"
            self.t.directives[directive.id] = DIRECTIVE.dump_json(directive)

    async def resolve(self, directive_id: str) -> None:
        if directive_id in self.t.directives:
            self.t.settled.add(directive_id)

    async def drop(self, directive_ids: Iterable[str]) -> None:
        self.t.settled.update(directive_ids)

    async def pending(self) -> Sequence[Directive]:
        return [
            DIRECTIVE.validate_json(document)
            for key, document in self.t.directives.items()
            if key not in self.t.settled
        ]

    async def prune(self, job_id: str, *, before_generation: int, limit: int) -> int:
        directives = map(DIRECTIVE.validate_json, self.t.directives.values())
        outdated = [
            each.id
            for each in directives
            if each.job_id == job_id and each.generation < before_generation
            if each.id in self.t.settled
        ][:limit]
        for directive_id in outdated:
            del self.t.directives[directive_id]
            self.t.settled.remove(directive_id)
        return len(outdated)


class _Events(_Table):
    async def append(self, drafts: Sequence[EventDraft]) -> None:
        first = len(self.t.events) + 1
        events = [
            Event(
                sequence=first + offset,
                **{name: getattr(draft, name) for name in EventDraft.__dataclass_fields__},
            )
            for offset, draft in enumerate(drafts)
        ]
        self.t.events.extend(events)

    async def after(self, sequence: int, *, job_id: str, limit: int) -> Sequence[Event]:
        found = [e for e in self.t.events if e.sequence > sequence]
        return [e for e in found if not job_id or e.job_id == job_id][:limit]

    async def newest_sequence(self) -> int:
        return len(self.t.events)


class _Recoveries(_Table):
    async def save(self, recovery: Recovery) -> None:
        others = [
            r for r in self.t.recoveries if (r.job_id, r.id) != (recovery.job_id, recovery.id)
        ]
        known = await self._find(recovery.job_id, recovery.id)
        lost_seconds = known.lost_seconds if known is not None else recovery.lost_seconds
        saved = replace(recovery, lost_seconds=lost_seconds)
        self.t.recoveries[:] = sorted((*others, saved), key=lambda r: r.id)

    async def save_lost_seconds(self, job_id: str, recovery_id: int, seconds: float) -> None:
        for index, each in enumerate(self.t.recoveries):
            if (each.job_id, each.id) == (job_id, recovery_id):
                self.t.recoveries[index] = replace(each, lost_seconds=seconds)

    async def unmeasured(self, job_id: str) -> Sequence[Recovery]:
        return [
            r
            for r in self.t.recoveries
            if r.job_id == job_id and r.hit_step is not None and r.lost_seconds is None
        ]

    async def _find(self, job_id: str, recovery_id: int) -> Recovery | None:
        found = (r for r in self.t.recoveries if (r.job_id, r.id) == (job_id, recovery_id))
        return next(found, None)

    async def page(self, job_id: str, page: PageRequest) -> Page[Recovery]:
        found = [r for r in self.t.recoveries if r.job_id == job_id]
        return _page(found, page)


class _Steps(_Table):
    async def add(self, metrics: Sequence[StepMetrics]) -> None:
        for step in metrics:
            self.t.steps.setdefault((step.job_id, step.step), step)

    async def forget(self, job_id: str, first_step: int) -> None:
        self.t.steps = {
            k: s for k, s in self.t.steps.items() if k[0] != job_id or k[1] < first_step
        }

    async def page(self, job_id: str, page: PageRequest) -> Page[StepMetrics]:
        found = [s for (job, _), s in sorted(self.t.steps.items()) if job == job_id]
        return _page(found, page)

    async def since(self, job_id: str, step: int, limit: int) -> Sequence[StepMetrics]:
        found = [s for (job, _), s in sorted(self.t.steps.items()) if job == job_id]
        return [s for s in found if s.step >= step][:limit]

    async def newest(self, job_id: str, limit: int) -> Sequence[StepMetrics]:
        return [s for (job, _), s in sorted(self.t.steps.items()) if job == job_id][-limit:]


class _Lines(_Table):
    async def append(self, lines: Sequence[LogLine]) -> None:
        for line in lines:
            number = 1 + sum(known.job_id == line.job_id for known in self.t.lines)
            self.t.lines.append(replace(line, sequence=number))

    async def page(self, job_id: str, page: PageRequest) -> Page[LogLine]:
        found = [line for line in self.t.lines if line.job_id == job_id]
        return _page(found, page)


class _Requests(_Table):
    async def get(self, request_id: str) -> RequestRecord | None:
        return self.t.requests.get(request_id)

    async def add(self, record: RequestRecord) -> None:
        self.t.requests[record.request_id] = record

    async def forget_before(self, time: datetime) -> None:
        for record in tuple(self.t.requests.values()):
            if record.create_time < time:
                del self.t.requests[record.request_id]
