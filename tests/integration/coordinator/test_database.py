"""What the application relies on, on both databases."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, timedelta, timezone

import pytest

from integration.coordinator.conftest import MAX_LOG_LINES
from planaria_common.errors import ErrorReason, InvalidArgumentError
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, open_database
from planaria_coordinator.application.ports import (
    GenerationRecord,
    RequestRecord,
    TransitionRecord,
)
from planaria_coordinator.application.statistics import RecoveryTotals
from planaria_coordinator.domain.directive import (
    Activate,
    Command,
    Commit,
    CommitRecord,
    Copied,
    Copy,
    Digested,
    DigestLayers,
    Directive,
    Export,
    Failure,
    FenceReport,
    HeldLayer,
    LayerSource,
    Outcome,
    PipelineAssignment,
    Prepare,
    Prepared,
    Quiesce,
    QuiesceMode,
    StageAssignment,
    Stop,
    Stopped,
)
from planaria_coordinator.domain.event import EventDraft
from planaria_coordinator.domain.job import JobError, JobState, LogLine, StepMetrics
from planaria_coordinator.domain.node import NodeState
from unit.coordinator_edge.fakes import NOON, PLAN, RECOVERY, job, node

pytestmark = pytest.mark.integration

RECORD = CommitRecord(step=3, generation=2, gradient_norm=0.5, loss=2.5, num_tokens=64)


def draft(number: int, job_id: str = "job-1") -> EventDraft:
    return EventDraft(time=NOON, type="happened", message=str(number), job_id=job_id)


def metrics(step: int) -> StepMetrics:
    return StepMetrics(
        job_id="job-1",
        step=step,
        loss=1 / 3,
        gradient_norm=0.1,
        learning_rate=3e-4,
        num_tokens=64,
        step_seconds=0.25,
        generation=1,
        commit_time=NOON,
        seconds={"forward": 0.1},
    )


def line(number: int, job_id: str = "job-1") -> LogLine:
    return LogLine(job_id=job_id, engine_id="e", time=NOON, text=f"line {number}")


def directive(number: int, command: Command | None = None) -> Directive:
    return Directive(
        id=f"directive-{number}",
        job_id="job-1",
        generation=2,
        engine_id="job-1/a/0/1",
        node_id="a",
        command=command or Stop(reason="done"),
    )


@pytest.fixture
async def with_job(database: SqlDatabase) -> SqlDatabase:
    async with database.unit_of_work() as work:
        await work.jobs.add(job())
        await work.commit()
    return database


async def test_only_commit_makes_visible(database: SqlDatabase) -> None:
    """Leaving a unit of work without commit leaves nothing."""
    async with database.unit_of_work() as work:
        await work.jobs.add(job())
        await work.events.append([draft(1)])
        assert await work.jobs.get("job-1") is not None
    async with database.unit_of_work() as work:
        assert await work.jobs.get("job-1") is None
        assert await work.events.newest_sequence() == 0


async def test_an_error_rolls_back(database: SqlDatabase) -> None:
    """So does an exception inside the block."""

    async def fail_half_way() -> None:
        async with database.unit_of_work() as work:
            await work.jobs.add(job())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_half_way()
    async with database.unit_of_work() as work:
        assert await work.jobs.get("job-1") is None


async def test_a_job_comes_back_as_it_was(with_job: SqlDatabase) -> None:
    """Every field survives, times in UTC."""
    full = job(
        state=JobState.FAILED,
        goodput=0.75,
        final_digest="ab" * 32,
        error=JobError(
            reason=ErrorReason.STATE_LOST, message="layer 3 is gone", metadata={"layers": "3"}
        ),
        start_time=NOON.astimezone(timezone(timedelta(hours=5))),
        end_time=NOON + timedelta(microseconds=1),
        fault_tolerance=2,
        spec={"name": "größe", "training": {"learning_rate": 3e-4, "seed": 2**53 + 1}},
    )
    async with with_job.unit_of_work() as work:
        await work.jobs.save(full)
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.jobs.get("job-1") == full
        assert (await work.jobs.get("job-1")).start_time.tzinfo is UTC  # type: ignore[union-attr]


async def test_jobs_are_listed_newest_first(database: SqlDatabase) -> None:
    """Pages join up to the whole list, also while jobs are added."""
    async with database.unit_of_work() as work:
        for number in range(5):
            await work.jobs.add(job(f"job-{number}"))
        first = await work.jobs.page(page_size=2, page_token="")
        await work.jobs.add(job("job-5"))
        second = await work.jobs.page(page_size=2, page_token=first.next_page_token)
        third = await work.jobs.page(page_size=2, page_token=second.next_page_token)

    pages = [[j.id for j in page.items] for page in (first, second, third)]
    assert pages == [["job-4", "job-3"], ["job-2", "job-1"], ["job-0"]]
    assert third.next_page_token == ""


async def test_a_full_last_page_is_the_last(with_job: SqlDatabase) -> None:
    """No empty page follows."""
    async with with_job.unit_of_work() as work:
        assert (await work.jobs.page(page_size=1, page_token="")).next_page_token == ""


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "\N{FULLWIDTH DIGIT NINE}", "9" * 30, "'; --"])
async def test_foreign_page_tokens_are_refused(database: SqlDatabase, token: str) -> None:
    """The error names page_token."""
    async with database.unit_of_work() as work:
        with pytest.raises(InvalidArgumentError) as raised:
            await work.jobs.page(page_size=1, page_token=token)
    assert raised.value.metadata["field"] == "page_token"


async def test_unfinished_jobs(database: SqlDatabase) -> None:
    """A restarted coordinator finds every job it has to look after, the oldest first."""
    async with database.unit_of_work() as work:
        for state in JobState:
            await work.jobs.add(job(f"job-{state.value}", state=state))
        found = await work.jobs.unfinished()

    states = [found_job.state for found_job in found]
    assert states == [state for state in JobState if not state.is_terminal]


async def test_a_node_comes_back_without_its_engines(database: SqlDatabase) -> None:
    """Saving replaces; removing removes; heartbeats of many nodes are set at once."""
    async with database.unit_of_work() as work:
        for name in ("b", "a", "c"):
            await work.nodes.save(node(name))
        await work.nodes.save(node("a", state=NodeState.CORDONED, agent_pid=2**31))
        await work.nodes.remove("c")
        later = NOON + timedelta(seconds=5)
        await work.nodes.save_heartbeats({"a": later, "gone": later})
        await work.nodes.save_heartbeats({})
        found = await work.nodes.all()
        await work.commit()

    assert [n.id for n in found] == ["a", "b"]
    expected = node(
        "a", state=NodeState.CORDONED, agent_pid=2**31, engines=(), heartbeat_time=later
    )
    async with database.unit_of_work() as work:
        assert await work.nodes.get("a") == expected
        assert await work.nodes.get("c") is None


async def test_the_newest_plan(with_job: SqlDatabase) -> None:
    """A generation that is still being planned does not hide the plan that runs."""
    record = GenerationRecord(job_id="job-1", generation=1, cause="start", open_time=NOON)
    async with with_job.unit_of_work() as work:
        assert await work.generations.newest_planned("job-1") is None
        await work.generations.save(record)
        assert await work.generations.newest_planned("job-1") is None
        await work.generations.save(replace(record, plan=PLAN, reason="fastest"))
        await work.generations.save(replace(record, generation=2, cause="node_lost"))
        newest = await work.generations.newest_planned("job-1")

    assert newest == replace(record, plan=PLAN, reason="fastest")


async def test_transitions_are_kept(with_job: SqlDatabase) -> None:
    """The history of a generation can be written phase by phase."""
    async with with_job.unit_of_work() as work:
        for phase in ("QUIESCING", "PLANNING"):
            await work.transitions.append(
                TransitionRecord(
                    job_id="job-1", generation=2, phase=phase, time=NOON, reason="node a is gone"
                )
            )
        await work.commit()


COMMANDS: Sequence[Command] = (
    Prepare(job_spec="{}", accelerator=0, job_secret="s"),
    Quiesce(mode=QuiesceMode.AT_COMMIT, lost_engine_ids=("x",)),
    Commit(record=RECORD),
    Copy(layers=(LayerSource(layer=1, addresses=("h:1",)), LayerSource(layer=2)), version=3),
    Activate(
        pipelines=(
            PipelineAssignment(
                stages=(
                    StageAssignment(engine_id="e", data_address="d", first_layer=0, num_layers=2),
                ),
                microbatches=(0, 1),
            ),
        ),
        committed_steps=3,
        store_address="h:2",
        rebuild_timeout_seconds=5.0,
    ),
    DigestLayers(layers=(0, 1)),
    Export(path="out", format="huggingface", layers=()),
    Stop(reason="done"),
)


async def test_directives_wait_until_they_are_resolved_or_dropped(with_job: SqlDatabase) -> None:
    """Every kind of command comes back as it was, in the order of sending."""
    sent = [directive(number, command) for number, command in enumerate(COMMANDS)]
    async with with_job.unit_of_work() as work:
        await work.directives.add(sent[:3])
        await work.directives.add(sent[3:])
        await work.directives.add([])
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == sent
        await work.directives.resolve("directive-1", Stopped())
        await work.directives.drop(["directive-2", "directive-1", "unknown"])
        await work.directives.resolve("unknown", Stopped())
        await work.commit()
    async with with_job.unit_of_work() as work:
        assert await work.directives.pending() == [sent[0], *sent[3:]]


OUTCOMES: Sequence[Outcome] = (
    FenceReport(
        committed_steps=3,
        last_commit=RECORD,
        layers=(HeldLayer(layer=0, version=3),),
        finished_microbatches=(1,),
        step_compute_seconds=0.5,
        fence_time=NOON,
        park_time=NOON,
    ),
    Copied(num_bytes=9, layers=(), start_time=NOON, end_time=NOON),
    Digested(digests={0: "ab", 11: "cd"}, version=3),
    Prepared(
        engine=node().engines[0],
        data_digest="d",
        num_tokens=1,
        fingerprint={"torch": "2.13"},
        measured_layers=(),
    ),
    Failure(reason=ErrorReason.DATA_UNUSABLE, message="no file", metadata={"path": "p"}),
)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.kind)
async def test_outcomes_are_stored(with_job: SqlDatabase, outcome: Outcome) -> None:
    """Every kind of outcome fits its column."""
    async with with_job.unit_of_work() as work:
        await work.directives.add([directive(1)])
        await work.directives.resolve("directive-1", outcome)
        await work.commit()
        assert await work.directives.pending() == []


async def test_events_are_numbered_without_gaps(database: SqlDatabase) -> None:
    """Rolled back units of work leave no hole in the order."""
    async with database.unit_of_work() as work:
        await work.events.append([draft(1), draft(2, job_id="")])
        await work.commit()
    async with database.unit_of_work() as work:
        await work.events.append([draft(3)])
    async with database.unit_of_work() as work:
        await work.events.append([])
        await work.events.append([draft(4)])
        await work.commit()

    async with database.unit_of_work() as work:
        assert await work.events.newest_sequence() == 3
        everything = await work.events.after(0, job_id="", limit=10)
        assert await work.events.after(1, job_id="job-1", limit=10) == [everything[2]]
        assert await work.events.after(0, job_id="", limit=1) == [everything[0]]
    assert [(event.sequence, event.message) for event in everything] == [
        (1, "1"),
        (2, "2"),
        (3, "4"),
    ]


async def test_events_of_concurrent_writers_appear_in_order(database: SqlDatabase) -> None:
    """A reader who has seen an event never meets a smaller number later."""
    seen: list[int] = []
    done = asyncio.Event()

    async def write(writer: int) -> None:
        for number in range(10):
            async with database.unit_of_work() as work:
                await work.events.append([draft(writer * 100 + number)] * (1 + number % 3))
                if number % 4 != 3:
                    await work.commit()

    async def read() -> None:
        while not done.is_set():
            async with database.unit_of_work() as work:
                after = seen[-1] if seen else 0
                found = await work.events.after(after, job_id="", limit=1000)
            seen.extend(event.sequence for event in found)
            await asyncio.sleep(0)

    reading = asyncio.ensure_future(read())
    await asyncio.gather(*(write(writer) for writer in range(5)))
    done.set()
    await reading
    async with database.unit_of_work() as work:
        everything = await work.events.after(0, job_id="", limit=1000)

    numbers = [event.sequence for event in everything]
    assert numbers == list(range(1, len(numbers) + 1))
    assert seen == numbers[: len(seen)]
    assert len(seen) > 1


async def test_recoveries(with_job: SqlDatabase) -> None:
    """All that a recovery cost, and totals over all of them."""
    async with with_job.unit_of_work() as work:
        await work.recoveries.add(RECOVERY)
        await work.recoveries.add(replace(RECOVERY, id=2))
        await work.recoveries.add(replace(RECOVERY, id=3, cause="node_joined"))
        page = await work.recoveries.page("job-1", page_size=2, page_token="")
        assert page.items == (RECOVERY, replace(RECOVERY, id=2))
        rest = await work.recoveries.page("job-1", page_size=2, page_token=page.next_page_token)
        assert [recovery.id for recovery in rest.items] == [3]
        await work.commit()

    totals = await with_job.totals()
    assert totals.jobs == {JobState.RUNNING: 1}
    assert totals.recoveries["node_lost"] == RecoveryTotals(
        count=2, pause_seconds=0.5, copied_bytes=2000, redone_microbatches=8
    )
    assert set(totals.recoveries) == {"node_lost", "node_joined"}


async def test_a_step_is_recorded_once(with_job: SqlDatabase) -> None:
    """Every pipeline's last stage reports a step; the first report counts."""
    async with with_job.unit_of_work() as work:
        await work.step_metrics.add([metrics(0), metrics(1)])
        await work.step_metrics.add([replace(metrics(1), loss=9.0), metrics(2)])
        await work.step_metrics.add([])
        page = await work.step_metrics.page("job-1", page_size=10, page_token="")
        assert page.items == (metrics(0), metrics(1), metrics(2))
        assert await work.step_metrics.newest("job-1", 2) == [metrics(1), metrics(2)]


async def test_logs_are_bounded_per_job(database: SqlDatabase) -> None:
    """The newest lines stay, numbered from 1; other jobs lose none."""
    async with database.unit_of_work() as work:
        await work.jobs.add(job("job-1"))
        await work.jobs.add(job("job-2"))
        await work.log_lines.append([line(1), line(1, "job-2"), line(2)])
        await work.log_lines.append([line(number) for number in range(3, 20)])
        page = await work.log_lines.page("job-1", page_size=100, page_token="")
        other = await work.log_lines.page("job-2", page_size=100, page_token="")

    expected = range(20 - MAX_LOG_LINES, 20)
    assert [found.sequence for found in page.items] == list(expected)
    assert [found.text for found in page.items] == [f"line {number}" for number in expected]
    assert [found.sequence for found in other.items] == [1]


async def test_logs_take_any_text(with_job: SqlDatabase) -> None:
    """Engines may write NUL bytes, which PostgreSQL's text cannot hold."""
    async with with_job.unit_of_work() as work:
        await work.log_lines.append([replace(line(1), text="a\0b")])
        page = await work.log_lines.page("job-1", page_size=1, page_token="")
    assert page.items[0].text == "a\N{REPLACEMENT CHARACTER}b"


async def test_request_ids(database: SqlDatabase) -> None:
    """A change is found again by the id it was made under."""
    record = RequestRecord(
        request_id="r", method="create_job", fingerprint="f" * 64, resource_id="job-1"
    )
    async with database.unit_of_work() as work:
        assert await work.requests.get("r") is None
        await work.requests.add(record)
        await work.commit()
    async with database.unit_of_work() as work:
        assert await work.requests.get("r") == record


async def test_what_was_committed_outlives_the_coordinator(database_url: str) -> None:
    """Opening the database again finds everything, and migrates nothing twice."""
    for expected in (0, 1, 2):
        opened = await open_database(database_url, max_log_lines_per_job=MAX_LOG_LINES)
        async with opened.unit_of_work() as work:
            assert await work.events.newest_sequence() == expected
            await work.events.append([draft(expected)])
            await work.commit()
        await opened.close()
