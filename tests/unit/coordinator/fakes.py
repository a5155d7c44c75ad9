"""A database and a planner in memory that keep the promises of the ports, and can fail."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.application.ports import (
    GenerationRecord,
    Page,
    RequestRecord,
    TransitionRecord,
)
from planaria_coordinator.domain.directive import Directive, Outcome
from planaria_coordinator.domain.event import Event, EventDraft
from planaria_coordinator.domain.job import Job, LogLine, StepMetrics
from planaria_coordinator.domain.node import Node
from planaria_coordinator.domain.plan import Pipeline, Plan, Stage
from planaria_coordinator.domain.planning import PlanAnswer, PlanQuery
from planaria_coordinator.domain.recovery import Recovery
from planaria_coordinator.domain.run import JobRun

T = TypeVar("T")
_RUN = TypeAdapter(JobRun)
_DIRECTIVE = TypeAdapter(Directive)


@dataclass(slots=True)
class Tables:
    """Everything that is committed; documents are stored as the JSON a database would hold."""

    jobs: dict[str, Job] = field(default_factory=dict)
    runs: dict[str, bytes] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    generations: dict[tuple[str, int], GenerationRecord] = field(default_factory=dict)
    transitions: list[TransitionRecord] = field(default_factory=list)
    directives: dict[str, bytes] = field(default_factory=dict)
    settled: dict[str, Outcome | None] = field(default_factory=dict)
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
        self.num_failing_commits = 0
        self.on_event: Callable[[Event], None] = lambda _event: None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator["FakeWork"]:
        async with self._lock:
            yield FakeWork(self)

    async def ping(self) -> None:
        if self.num_failing_commits:
            raise PlanariaError(ErrorReason.UNAVAILABLE, "no database", {"part": "database"})


class FakeWork:
    """One transaction; every repository in one class, told apart by views."""

    def __init__(self, database: FakeDatabase) -> None:
        self._database = database
        self.tables = database.tables.copy()
        self.jobs = _Jobs(self.tables)
        self.runs = _Runs(self.tables)
        self.nodes = _Nodes(self.tables)
        self.generations = _Generations(self.tables)
        self.transitions = _Transitions(self.tables)
        self.directives = _Directives(self.tables)
        self.events = _Events(self.tables)
        self.recoveries = _Recoveries(self.tables)
        self.step_metrics = _Steps(self.tables)
        self.log_lines = _Lines(self.tables)
        self.requests = _Requests(self.tables)

    async def commit(self) -> None:
        await asyncio.sleep(0)  # a real commit lets others run
        if self._database.num_failing_commits:
            self._database.num_failing_commits -= 1
            raise PlanariaError(ErrorReason.UNAVAILABLE, "disk full", {"part": "database"})
        new = self.tables.events[len(self._database.tables.events) :]
        self._database.tables = self.tables.copy()
        for event in new:
            self._database.on_event(event)


class _Table:
    def __init__(self, tables: Tables) -> None:
        self.t = tables


def _page(items: Sequence[T], page_size: int, page_token: str) -> Page[T]:
    start = int(page_token or 0)
    more = len(items) > start + page_size
    return Page(
        items=tuple(items[start : start + page_size]),
        next_page_token=str(start + page_size) if more else "",
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

    async def page(self, *, page_size: int, page_token: str) -> Page[Job]:
        return _page(list(self.t.jobs.values())[::-1], page_size, page_token)

    async def unfinished(self) -> Sequence[Job]:
        return [job for job in self.t.jobs.values() if not job.state.is_terminal]


class _Runs(_Table):
    async def get(self, job_id: str) -> JobRun | None:
        document = self.t.runs.get(job_id)
        return None if document is None else _RUN.validate_json(document)

    async def save(self, run: JobRun) -> None:
        self.t.runs[run.job_id] = _RUN.dump_json(run)


class _Nodes(_Table):
    async def get(self, node_id: str) -> Node | None:
        return self.t.nodes.get(node_id)

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


class _Transitions(_Table):
    async def append(self, record: TransitionRecord) -> None:
        self.t.transitions.append(record)


class _Directives(_Table):
    async def add(self, directives: Sequence[Directive]) -> None:
        for directive in directives:
            assert directive.id not in self.t.directives, "a directive's id is used once"
            self.t.directives[directive.id] = _DIRECTIVE.dump_json(directive)

    async def resolve(self, directive_id: str, outcome: Outcome) -> None:
        if directive_id in self.t.directives:
            self.t.settled.setdefault(directive_id, outcome)

    async def drop(self, directive_ids: Iterable[str]) -> None:
        for directive_id in directive_ids:
            self.t.settled.setdefault(directive_id, None)

    async def pending(self) -> Sequence[Directive]:
        return [
            _DIRECTIVE.validate_json(document)
            for key, document in self.t.directives.items()
            if key not in self.t.settled
        ]


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
    async def add(self, recovery: Recovery) -> None:
        self.t.recoveries.append(recovery)

    async def page(self, job_id: str, *, page_size: int, page_token: str) -> Page[Recovery]:
        found = [r for r in self.t.recoveries if r.job_id == job_id]
        return _page(found, page_size, page_token)


class _Steps(_Table):
    async def add(self, metrics: Sequence[StepMetrics]) -> None:
        for step in metrics:
            self.t.steps.setdefault((step.job_id, step.step), step)

    async def page(self, job_id: str, *, page_size: int, page_token: str) -> Page[StepMetrics]:
        found = [s for (job, _), s in sorted(self.t.steps.items()) if job == job_id]
        return _page(found, page_size, page_token)

    async def newest(self, job_id: str, limit: int) -> Sequence[StepMetrics]:
        return [s for (job, _), s in sorted(self.t.steps.items()) if job == job_id][-limit:]


class _Lines(_Table):
    async def append(self, lines: Sequence[LogLine]) -> None:
        for line in lines:
            number = 1 + sum(known.job_id == line.job_id for known in self.t.lines)
            self.t.lines.append(replace(line, sequence=number))

    async def page(self, job_id: str, *, page_size: int, page_token: str) -> Page[LogLine]:
        found = [line for line in self.t.lines if line.job_id == job_id]
        return _page(found, page_size, page_token)


class _Requests(_Table):
    async def get(self, request_id: str) -> RequestRecord | None:
        return self.t.requests.get(request_id)

    async def add(self, record: RequestRecord) -> None:
        self.t.requests[record.request_id] = record


class FakePlanner:
    """Cuts pipelines evenly: as many as there can be, the first ones longer."""

    def __init__(self) -> None:
        self.queries: list[PlanQuery] = []
        self.error: PlanariaError | None = None
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.uses_joiners = True
        self.avoids: frozenset[str] = frozenset()
        """Nodes that are in no plan."""
        self.min_size = 1
        """Pipelines have at least so many nodes, though `min_nodes` does not say so."""
        self.appends_joiners = False
        """Joiners make pipelines of their own, and the others stay as they are."""
        self.plans_ahead = False
        self.questions_ahead: list[PlanQuery] = []

    async def plan(self, query: PlanQuery) -> PlanAnswer:
        self.queries.append(query)
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        return self._plan(query)

    def _plan(self, query: PlanQuery) -> PlanAnswer:
        size = max(self.min_size, query.problem.min_nodes_per_pipeline)
        node_ids = sorted({node.node_id for node in query.nodes} - self.avoids)
        if query.current is not None and not self.uses_joiners:
            node_ids = [n for n in node_ids if n in query.current.node_ids]
        if len(node_ids) < size:
            need = {"have": str(len(node_ids)), "need": str(size)}
            raise PlanariaError(ErrorReason.NOT_ENOUGH_NODES, "not enough nodes", need)
        if self.appends_joiners and query.current is not None:
            return self._append(query, query.current, size)
        num_pipelines = min(len(node_ids) // size, query.problem.num_microbatches)
        if query.current is None and num_pipelines <= query.problem.fault_tolerance:
            raise PlanariaError(
                ErrorReason.FAULT_TOLERANCE_IMPOSSIBLE,
                f"only {num_pipelines - 1} losses can be tolerated",
                {"possible": str(num_pipelines - 1)},
            )
        return PlanAnswer(
            plan=make_plan(
                node_ids,
                num_pipelines,
                len(query.problem.profile.layers),
                query.problem.num_microbatches,
            ),
            reason="as many pipelines as there can be",
            min_nodes=size,
        )

    def _append(self, query: PlanQuery, current: Plan, size: int) -> PlanAnswer:
        new = sorted({node.node_id for node in query.nodes} - set(current.node_ids))
        groups = [p.node_ids for p in current.pipelines]
        groups += [tuple(new[k : k + size]) for k in range(0, len(new) - size + 1, size)]
        dealt = [node_id for rank in zip(*groups, strict=True) for node_id in rank]
        num_layers = len(query.problem.profile.layers)
        plan = make_plan(dealt, len(groups), num_layers, query.problem.num_microbatches)
        return PlanAnswer(plan=plan, reason="joiners by themselves", min_nodes=size)

    async def plan_ahead(self, query: PlanQuery) -> AsyncIterator[tuple[str, PlanAnswer]]:
        self.questions_ahead.append(query)
        if not self.plans_ahead or query.current is None:
            return
        for node_id in query.current.node_ids:
            survivors = tuple(node for node in query.nodes if node.node_id != node_id)
            with suppress(PlanariaError):
                yield node_id, self._plan(replace(query, nodes=survivors))

    async def min_nodes(self, query: PlanQuery) -> int:
        if self.error is not None:
            raise self.error
        return max(1, query.problem.min_nodes_per_pipeline)

    async def ping(self) -> None:
        if self.error is not None:
            raise self.error


def make_plan(
    node_ids: Sequence[str], num_pipelines: int, num_layers: int, num_microbatches: int
) -> Plan:
    """Deal nodes and microbatches round, and cut the layers evenly."""
    pipelines = []
    for index in range(num_pipelines):
        mine = node_ids[index::num_pipelines][:num_layers]
        cuts = [num_layers * k // len(mine) for k in range(len(mine) + 1)]
        stages = tuple(
            Stage(
                first_layer=cuts[k],
                num_layers=cuts[k + 1] - cuts[k],
                node_index=k,
                node_id=node_id,
                accelerators=(0,),
            )
            for k, node_id in enumerate(mine)
        )
        microbatches = tuple(range(index, num_microbatches, num_pipelines))
        pipelines.append(Pipeline(stages=stages, microbatches=microbatches, iteration_seconds=1.0))
    return Plan(
        pipelines=tuple(pipelines), iteration_seconds=1.0, fault_tolerance=num_pipelines - 1
    )


def job_document(**changes: Any) -> dict[str, Any]:
    """Return a job file; sections given are merged into it."""
    document: dict[str, Any] = {
        "name": "small",
        "model": {
            "family": "llama",
            "hidden_size": 32,
            "num_layers": 4,
            "num_heads": 4,
            "vocab_size": 256,
        },
        "data": {"path": "corpus.txt", "sequence_length": 16},
        "training": {"steps": 100, "global_batch_size": 8, "microbatch_size": 1},
        "resilience": {"fault_tolerance": 1},
        "resources": {"min_nodes_per_pipeline": 1},
    }
    for section, values in changes.items():
        document[section] = (
            {**document.get(section, {}), **values} if isinstance(values, dict) else values
        )
    return document
