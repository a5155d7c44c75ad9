"""Events, recoveries, steps, logs and requests in the database."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from integration.coordinator.conftest import MAX_LOG_LINES
from integration.coordinator.rows import draft, line, metrics
from planaria_coordinator.adapters.database.unit_of_work import SqlDatabase
from planaria_coordinator.application.paging import PageRequest
from planaria_coordinator.application.ports import RequestRecord
from planaria_coordinator.application.statistics import RecoveryTotals
from planaria_coordinator.domain.job.job import JobState
from unit.coordinator_edge.fakes import NOON, RECOVERY, job

pytestmark = pytest.mark.integration


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
        await work.recoveries.save(RECOVERY)
        await work.recoveries.save(replace(RECOVERY, id=2, nodes_lost=()))
        await work.recoveries.save(replace(RECOVERY, id=2))
        await work.recoveries.save(replace(RECOVERY, id=3, cause="node_joined"))
        page = await work.recoveries.page("job-1", PageRequest(page_size=2))
        assert page.items == (RECOVERY, replace(RECOVERY, id=2))
        rest = await work.recoveries.page(
            "job-1", PageRequest(page_size=2, page_token=page.next_page_token)
        )
        assert [recovery.id for recovery in rest.items] == [3]
        await work.commit()
    async with with_job.unit_of_work() as work:
        await work.recoveries.save_lost_seconds("job-1", 3, 1.5)
        await work.recoveries.save(replace(RECOVERY, id=3, cause="node_joined"))
        await work.commit()
    async with with_job.unit_of_work() as work:
        page = await work.recoveries.page("job-1", PageRequest(page_size=3))
        unmeasured = await work.recoveries.unmeasured("job-1")
    assert [each.lost_seconds for each in page.items] == [None, None, 1.5]
    assert [each.id for each in unmeasured] == [1, 2]

    totals = await with_job.totals()
    assert totals.jobs == {JobState.RUNNING: 1}
    assert totals.recoveries["node_lost"] == RecoveryTotals(
        count=2,
        detect_seconds=0.2,
        fence_seconds=0.3,
        resume_seconds=0.5,
        regrow_seconds=1.0,
        idle_seconds=0.0,
        lost_seconds=0.0,
        copied_bytes=2000,
        redone_microbatches=8,
    )
    assert totals.recoveries["node_joined"].lost_seconds == 1.5
    assert set(totals.recoveries) == {"node_lost", "node_joined"}


async def test_a_step_is_recorded_once(with_job: SqlDatabase) -> None:
    """Every pipeline's last stage reports a step; the first report counts."""
    async with with_job.unit_of_work() as work:
        await work.step_metrics.add([metrics(0), metrics(1)])
        await work.step_metrics.add([replace(metrics(1), loss=9.0), metrics(2)])
        await work.step_metrics.add([])
        page = await work.step_metrics.page("job-1", PageRequest(page_size=10))
        assert page.items == (metrics(0), metrics(1), metrics(2))
        assert await work.step_metrics.newest("job-1", 2) == [metrics(1), metrics(2)]
        assert await work.step_metrics.since("job-1", 1, 1) == [metrics(1)]


async def test_logs_are_bounded_per_job(database: SqlDatabase) -> None:
    """The newest lines stay, numbered from 1; other jobs lose none."""
    async with database.unit_of_work() as work:
        await work.jobs.add(job("job-1"))
        await work.jobs.add(job("job-2"))
        await work.log_lines.append([line(1), line(1, "job-2"), line(2)])
        await work.log_lines.append([line(number) for number in range(3, 20)])
        page = await work.log_lines.page("job-1", PageRequest(page_size=100))
        other = await work.log_lines.page("job-2", PageRequest(page_size=100))

    expected = range(20 - MAX_LOG_LINES, 20)
    assert [found.sequence for found in page.items] == list(expected)
    assert [found.text for found in page.items] == [f"line {number}" for number in expected]
    assert [found.sequence for found in other.items] == [1]


async def test_logs_take_any_text(with_job: SqlDatabase) -> None:
    """Engines may write NUL bytes, which PostgreSQL's text cannot hold."""
    async with with_job.unit_of_work() as work:
        await work.log_lines.append([replace(line(1), text="a\0b")])
        page = await work.log_lines.page("job-1", PageRequest(page_size=1))
    assert page.items[0].text == "a\N{REPLACEMENT CHARACTER}b"


async def test_request_ids(database: SqlDatabase) -> None:
    """A change is found again by the id it was made under, until it is forgotten."""
    record = RequestRecord(
        request_id="r",
        method="create_job",
        fingerprint="f" * 64,
        resource_id="job-1",
        create_time=NOON,
    )
    async with database.unit_of_work() as work:
        assert await work.requests.get("r") is None
        await work.requests.add(record)
        await work.commit()
    for time, expected in ((NOON, record), (NOON + timedelta(microseconds=1), None)):
        async with database.unit_of_work() as work:
            await work.requests.forget_before(time)
            await work.commit()
        async with database.unit_of_work() as work:
            assert await work.requests.get("r") == expected
