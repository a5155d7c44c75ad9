"""Totals for monitoring, counted by the database."""

from sqlalchemy import Connection, func, select

from planaria_coordinator.adapters.database.schema import COUNTERS, JOBS, RECOVERIES
from planaria_coordinator.application.statistics import RecoveryTotals, Totals


def count_totals(connection: Connection) -> Totals:
    """Return the totals as they are in one transaction."""
    states = select(JOBS.c.state, func.count()).group_by(JOBS.c.state)
    causes = select(
        RECOVERIES.c.cause,
        func.count(),
        func.sum(RECOVERIES.c.pause_seconds),
        func.sum(RECOVERIES.c.copied_bytes),
        func.sum(RECOVERIES.c.redone_microbatches),
    ).group_by(RECOVERIES.c.cause)
    events = select(COUNTERS.c.value).where(COUNTERS.c.name == "events")
    return Totals(
        jobs={state: count for state, count in connection.execute(states)},  # noqa: C416 - rows are no pairs to mypy
        recoveries={
            cause: RecoveryTotals(
                count=count,
                pause_seconds=pause_seconds,
                copied_bytes=int(copied_bytes),
                redone_microbatches=int(redone_microbatches),
            )
            for cause, count, pause_seconds, copied_bytes, redone_microbatches in (
                connection.execute(causes)
            )
        },
        num_events=connection.execute(events).scalar_one_or_none() or 0,
    )
