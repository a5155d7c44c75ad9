"""Totals for monitoring, counted by the database."""

from typing import Final

from sqlalchemy import Connection, RowMapping, func, select

from planaria_coordinator.adapters.database.schema import COUNTERS, JOBS, RECOVERIES
from planaria_coordinator.application.statistics import RecoveryTotals, Totals

_SUMS: Final = (
    *("detect_seconds", "fence_seconds", "resume_seconds", "regrow_seconds"),
    *("idle_seconds", "lost_seconds", "copied_bytes", "redone_microbatches"),
)


def count_totals(connection: Connection) -> Totals:
    """Return the totals as they are in one transaction."""
    states = select(JOBS.c.state, func.count()).group_by(JOBS.c.state)
    causes = select(
        RECOVERIES.c.cause.label("cause"),
        func.count().label("count"),
        *(func.coalesce(func.sum(RECOVERIES.c[name]), 0).label(name) for name in _SUMS),
    ).group_by(RECOVERIES.c.cause)
    events = select(COUNTERS.c.value).where(COUNTERS.c.name == "events")
    return Totals(
        jobs={state: count for state, count in connection.execute(states)},  # noqa: C416 - rows are no pairs to mypy
        recoveries={row["cause"]: _totals(row) for row in connection.execute(causes).mappings()},
        num_events=connection.execute(events).scalar_one_or_none() or 0,
    )


def _totals(row: RowMapping) -> RecoveryTotals:
    return RecoveryTotals(
        count=row["count"],
        detect_seconds=row["detect_seconds"],
        fence_seconds=row["fence_seconds"],
        resume_seconds=row["resume_seconds"],
        regrow_seconds=row["regrow_seconds"],
        idle_seconds=row["idle_seconds"],
        lost_seconds=row["lost_seconds"],
        copied_bytes=int(row["copied_bytes"]),
        redone_microbatches=int(row["redone_microbatches"]),
    )
