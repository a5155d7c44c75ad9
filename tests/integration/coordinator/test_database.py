"""The database: what is committed is there, jobs and nodes come back as they were."""

from datetime import UTC, timedelta, timezone

import pytest

from integration.coordinator.conftest import MAX_LOG_LINES
from integration.coordinator.rows import draft
from planaria_common.errors import ErrorReason, InvalidArgumentError
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase, open_database
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.domain.engines.node import NodeState
from planaria_coordinator.domain.job.job import JobError, JobState
from unit.coordinator_edge.fakes import NOON, job, node

pytestmark = pytest.mark.integration


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
        first = await work.jobs.page(PageRequest(page_size=2))
        await work.jobs.add(job("job-5"))
        second = await work.jobs.page(PageRequest(page_size=2, page_token=first.next_page_token))
        third = await work.jobs.page(PageRequest(page_size=2, page_token=second.next_page_token))

    pages = [[j.id for j in page.items] for page in (first, second, third)]
    assert pages == [["job-4", "job-3"], ["job-2", "job-1"], ["job-0"]]
    assert third.next_page_token == ""


async def test_a_full_last_page_is_the_last(with_job: SqlDatabase) -> None:
    """No empty page follows."""
    async with with_job.unit_of_work() as work:
        assert (await work.jobs.page(PageRequest(page_size=1))).next_page_token == ""


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "\N{FULLWIDTH DIGIT NINE}", "9" * 30, "'; --"])
async def test_foreign_page_tokens_are_refused(database: SqlDatabase, token: str) -> None:
    """The error names page_token."""
    async with database.unit_of_work() as work:
        with pytest.raises(InvalidArgumentError) as raised:
            await work.jobs.page(PageRequest(page_size=1, page_token=token))
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
        assert await work.nodes.all() == [expected, node("b", engines=())]


async def test_committed_data_outlives_the_coordinator(database_url: str) -> None:
    """Opening the database again finds everything, and migrates nothing twice."""
    for expected in (0, 1, 2):
        opened = await open_database(database_url, max_log_lines_per_job=MAX_LOG_LINES)
        async with opened.unit_of_work() as work:
            assert await work.events.newest_sequence() == expected
            await work.events.append([draft(expected)])
            await work.commit()
        await opened.close()
