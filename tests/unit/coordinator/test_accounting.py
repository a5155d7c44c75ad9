"""What a change is said to have cost, from the engines' own clocks."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from planaria_coordinator.domain.engines.directive import QuiesceMode
from planaria_coordinator.domain.engines.outcome import Activated, Staged
from planaria_coordinator.domain.recovery.recovery_costs import recovery_record
from planaria_coordinator.domain.recovery.transition import (
    Cause,
    Phase,
    Transition,
    TransitionHistory,
)
from unit.coordinator.protocol_cluster import first_run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def switched(story: TransitionHistory) -> Transition:
    """Two engines took other places behind a commit, for 0.2 s each, the second 0.3 s later."""
    taken = {"a": (10.0, 10.2), "b": (10.3, 10.5)}
    return Transition(
        generation=3,
        phase=Phase.SWITCHING,
        story=story,
        open_time=at(1),
        horizon_seconds=60.0,
        mode=QuiesceMode.AT_COMMIT,
        stopped=("a", "b"),
        staged={
            e: Staged(
                num_bytes=0,
                start_time=at(2),
                rebuild_end_time=at(3),
                copy_end_time=None,
                num_communicators=1,
            )
            for e in taken
        },
        activated={
            e: Activated(rebuild_start_time=at(stop), resume_time=at(resume), num_communicators=1)
            for e, (stop, resume) in taken.items()
        },
    )


def test_engines_that_swap_assignments_are_accounted_separately() -> None:
    """Before its own commit an engine updates, behind its change it trains: neither is a pause."""
    story = TransitionHistory(cause=Cause.NODE_JOINED, start_time=at(0), first_open_time=at(1))
    run = first_run(num_steps=9)
    record = recovery_record(run, switched(story), 1)
    assert record.pause_seconds == pytest.approx(0.2)
    lost = replace(story, cause=Cause.NODE_LOST, resume_time=at(0.1), stop_times={"w": at(0)})
    record = recovery_record(run, switched(lost), 1)
    assert record.pause_seconds == pytest.approx(0.3)
