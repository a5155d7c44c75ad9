"""Repositories of jobs and of what belongs to one job."""

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.adapters.database.columns import UnreadableDocumentError
from planaria_coordinator.adapters.database.records import (
    Listing,
    count_up,
    find_all,
    find_first,
    find_value,
    insert_or_ignore,
    insert_or_replace,
    insert_rows,
    inserting,
    row_of,
    updating,
    write,
)
from planaria_coordinator.adapters.database.schema import (
    COUNTERS,
    DIRECTIVES,
    GENERATIONS,
    JOBS,
    LOG_LINES,
    RECOVERIES,
    RUNS,
    STEP_METRICS,
)
from planaria_coordinator.adapters.database.transaction import Transaction
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import GenerationRecord, Page
from planaria_coordinator.domain.engines.directive import Directive
from planaria_coordinator.domain.job.job import Job, JobState, LogLine, StepMetrics
from planaria_coordinator.domain.job.job_run import JobRun
from planaria_coordinator.domain.recovery.recovery_record import Recovery

_TERMINAL: Final = [state for state in JobState if state.is_terminal]
_SETTLED: Final = ("RESOLVED", "SUPERSEDED")
_MAX_PARAMETERS: Final = 1_000
"""Of one statement: few enough that PostgreSQL does not take a slow coordinator to be frozen in its
transaction while the statement is written."""
_KEEPERS: Final = DIRECTIVES.alias("keepers")
"""Directives seen as those that have the command of others."""
_KEPT: Final = DIRECTIVES.alias("kept")
"""Those others."""


class SqlJobs:
    """Jobs, in the order of their submission."""

    _listing: Final = Listing(record_type=Job, table=JOBS, order=JOBS.c.position, newest_first=True)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, job: Job) -> None:
        insert_rows(self._transaction, JOBS, [row_of(job, JOBS)])

    async def get(self, job_id: str) -> Job | None:
        return await find_first(self._transaction, Job, select(JOBS).where(JOBS.c.id == job_id))

    async def save(self, job: Job) -> None:
        row = {**row_of(job, JOBS), "row_id": job.id}
        write(self._transaction, updating(JOBS.c.id), [row])

    async def page(self, page: PageRequest) -> Page[Job]:
        return await self._listing.page(self._transaction, page)

    async def unfinished(self) -> Sequence[Job]:
        query = select(JOBS).where(JOBS.c.state.not_in(_TERMINAL)).order_by(JOBS.c.position)
        return await find_all(self._transaction, Job, query)


class SqlRuns:
    """The state of each job's state machine."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def get(self, job_id: str) -> JobRun | None:
        query = select(RUNS.c.run).where(RUNS.c.job_id == job_id)
        try:
            run: JobRun | None = await find_value(self._transaction, query)
        except UnreadableDocumentError as error:
            raise PlanariaError(
                ErrorReason.VERSION_MISMATCH,
                f"the stored run of {job_id} {error}: another version of Planaria wrote it",
                {"job_id": job_id, "key": error.key},
            ) from None
        return run

    async def save(self, run: JobRun) -> None:
        insert_or_replace(self._transaction, RUNS, {"job_id": run.job_id, "run": run})


class SqlGenerations:
    """Generations with their plans."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def save(self, record: GenerationRecord) -> None:
        insert_or_replace(self._transaction, GENERATIONS, row_of(record, GENERATIONS))

    async def newest_planned(self, job_id: str) -> GenerationRecord | None:
        query = (
            select(GENERATIONS)
            .where(GENERATIONS.c.job_id == job_id, GENERATIONS.c.plan.is_not(None))
            .order_by(GENERATIONS.c.generation.desc())
        )
        return await find_first(self._transaction, GenerationRecord, query)


class SqlDirectives:
    """Directives, in the order in which they were added."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, directives: Sequence[Directive]) -> None:
        ids = [each.id for each in directives]
        for start in range(0, len(ids), _MAX_PARAMETERS):
            # The answer to an earlier COMMIT may have been lost; nothing of it was sent.
            stored = DIRECTIVES.c.id.in_(ids[start : start + _MAX_PARAMETERS])
            write(self._transaction, delete(DIRECTIVES).where(stored))
        keepers: dict[int, str] = {}
        rows = []
        for each in directives:
            keeper = keepers.setdefault(id(each.command), each.id)
            row = {**row_of(each, DIRECTIVES), "state": "PENDING", "command_of": None}
            if keeper != each.id:
                row |= {"command": None, "command_of": keeper}
            rows.append(row)
        insert_rows(self._transaction, DIRECTIVES, rows)

    async def resolve(self, directive_id: str) -> None:
        write(
            self._transaction,
            update(DIRECTIVES)
            .where(DIRECTIVES.c.id == directive_id, DIRECTIVES.c.state != "RESOLVED")
            .values(state="RESOLVED"),
        )

    async def drop(self, directive_ids: Iterable[str]) -> None:
        ids = list(directive_ids)
        for start in range(0, len(ids), _MAX_PARAMETERS):
            some = DIRECTIVES.c.id.in_(ids[start : start + _MAX_PARAMETERS])
            write(
                self._transaction,
                update(DIRECTIVES)
                .where(some, DIRECTIVES.c.state == "PENDING")
                .values(state="SUPERSEDED"),
            )

    async def pending(self) -> Sequence[Directive]:
        command = func.coalesce(DIRECTIVES.c.command, _KEEPERS.c.command).label("command")
        others = [column for column in DIRECTIVES.c if column.name != "command"]
        query = (
            select(*others, command)
            .outerjoin_from(DIRECTIVES, _KEEPERS, DIRECTIVES.c.command_of == _KEEPERS.c.id)
            .where(DIRECTIVES.c.state == "PENDING")
            .order_by(DIRECTIVES.c.position)
        )
        return await find_all(self._transaction, Directive, query)

    async def prune(self, job_id: str, *, before_generation: int, limit: int) -> int:
        query = (
            select(DIRECTIVES.c.position)
            .where(
                DIRECTIVES.c.state.in_(_SETTLED),
                DIRECTIVES.c.job_id == job_id,
                DIRECTIVES.c.generation < before_generation,
                ~exists().where(_KEPT.c.command_of == DIRECTIVES.c.id, _KEPT.c.state == "PENDING"),
            )
            .limit(limit)
        )
        found = await self._transaction.run(lambda connection: connection.scalars(query).all())
        if found:
            outdated = delete(DIRECTIVES).where(DIRECTIVES.c.position == bindparam("outdated"))
            write(self._transaction, outdated, [{"outdated": position} for position in found])
        return len(found)


class SqlRecoveries:
    """Recoveries of jobs."""

    _listing: Final = Listing(record_type=Recovery, table=RECOVERIES, order=RECOVERIES.c.id)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def save(self, recovery: Recovery) -> None:
        row = row_of(recovery, RECOVERIES)
        insert_or_replace(self._transaction, RECOVERIES, row, keep=("lost_seconds",))

    async def save_lost_seconds(self, job_id: str, recovery_id: int, seconds: float) -> None:
        statement = update(RECOVERIES).where(
            RECOVERIES.c.job_id == job_id, RECOVERIES.c.id == recovery_id
        )
        write(self._transaction, statement.values(lost_seconds=seconds))

    async def unmeasured(self, job_id: str) -> Sequence[Recovery]:
        query = select(RECOVERIES).where(
            RECOVERIES.c.job_id == job_id,
            RECOVERIES.c.hit_step.is_not(None),
            RECOVERIES.c.lost_seconds.is_(None),
        )
        return await find_all(self._transaction, Recovery, query.order_by(RECOVERIES.c.id))

    async def page(self, job_id: str, page: PageRequest) -> Page[Recovery]:
        return await self._listing.page(self._transaction, page, RECOVERIES.c.job_id == job_id)


class SqlStepMetrics:
    """Committed steps of jobs."""

    _listing: Final = Listing(
        record_type=StepMetrics, table=STEP_METRICS, order=STEP_METRICS.c.step
    )

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def add(self, metrics: Sequence[StepMetrics]) -> None:
        rows = [row_of(each, STEP_METRICS) for each in metrics]
        insert_or_ignore(self._transaction, STEP_METRICS, rows)

    async def forget(self, job_id: str, first_step: int) -> None:
        is_void = (STEP_METRICS.c.job_id == job_id, STEP_METRICS.c.step >= first_step)
        write(self._transaction, delete(STEP_METRICS).where(*is_void))

    async def page(self, job_id: str, page: PageRequest) -> Page[StepMetrics]:
        return await self._listing.page(self._transaction, page, STEP_METRICS.c.job_id == job_id)

    async def since(self, job_id: str, step: int, limit: int) -> Sequence[StepMetrics]:
        query = (
            select(STEP_METRICS)
            .where(STEP_METRICS.c.job_id == job_id, STEP_METRICS.c.step >= step)
            .order_by(STEP_METRICS.c.step)
            .limit(limit)
        )
        return await find_all(self._transaction, StepMetrics, query)

    async def newest(self, job_id: str, limit: int) -> Sequence[StepMetrics]:
        query = (
            select(STEP_METRICS)
            .where(STEP_METRICS.c.job_id == job_id)
            .order_by(STEP_METRICS.c.step.desc())
            .limit(limit)
        )
        return (await find_all(self._transaction, StepMetrics, query))[::-1]


class SqlLogLines:
    """The newest lines of each job's log.

    Args:
        transaction: of the unit of work.
        max_lines_per_job: older lines are deleted.
    """

    _listing: Final = Listing(record_type=LogLine, table=LOG_LINES, order=LOG_LINES.c.sequence)

    def __init__(self, transaction: Transaction, *, max_lines_per_job: int) -> None:
        self._transaction = transaction
        self._max_lines_per_job = max_lines_per_job

    async def append(self, lines: Sequence[LogLine]) -> None:
        by_job: dict[str, list[LogLine]] = {}
        for line in lines:
            by_job.setdefault(line.job_id, []).append(line)
        # In one order for all: two appends must not wait for each other's counters.
        for job_id in sorted(by_job):
            self._append_to_job(job_id, by_job[job_id])

    def _append_to_job(self, job_id: str, lines: Sequence[LogLine]) -> None:
        rows = [
            # PostgreSQL's text cannot hold NUL, and engines may write anything.
            {**row_of(line, LOG_LINES), "text": line.text.replace("\0", "�")}
            for line in lines
        ]

        def append(connection: Connection) -> None:
            newest = count_up(connection, COUNTERS, f"log_lines/{job_id}", len(rows))
            first = newest - len(rows) + 1
            numbered = [{**row, "sequence": number} for number, row in enumerate(rows, start=first)]
            connection.execute(inserting(LOG_LINES), numbered[-self._max_lines_per_job :])
            connection.execute(
                delete(LOG_LINES).where(
                    LOG_LINES.c.job_id == job_id,
                    LOG_LINES.c.sequence <= newest - self._max_lines_per_job,
                )
            )

        self._transaction.write(append)

    async def page(self, job_id: str, page: PageRequest) -> Page[LogLine]:
        return await self._listing.page(self._transaction, page, LOG_LINES.c.job_id == job_id)
