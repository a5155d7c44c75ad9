"""Random events on real processes, a little of benchmarks/chaos: nobody can tell afterwards."""

from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import replay_command
from benchmarks.chaos.runner import (
    Expected,
    Outcome,
    chaos_job,
    run_schedule,
    undisturbed,
    why_no_network,
)
from benchmarks.common.jobs import write_text
from planaria.job import JobSpec

pytestmark = pytest.mark.e2e


def prepared(folder: Path, steps: int) -> tuple[JobSpec, Expected]:
    spec = chaos_job(write_text(folder / "text.txt"), steps)
    return spec, undisturbed(spec, folder / "cache")


def disturbed(
    folder: Path, seed: int, num_events: int, spec: JobSpec, expected: Expected
) -> Outcome:
    return run_schedule(
        folder,
        seed,
        num_events=num_events,
        spec=spec,
        expected=expected,
        without_network=why_no_network(),
    )


def test_a_few_random_events_leave_no_trace_in_the_model(tmp_path: Path) -> None:
    """[1, 2, 6] Seed 78508 kills a node and an engine; and the coordinator, if links can be cut."""
    spec, expected = prepared(tmp_path, steps=120)
    outcome = disturbed(tmp_path / "run", 78508, 3, spec, expected)
    assert outcome.problems == (), replay_command(78508, 3, 120)
    assert {event.kind for event in outcome.done} > {"kill", "kill_engine"}
    assert outcome.num_recoveries


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_random_events_leave_no_trace_in_the_model(tmp_path: Path) -> None:
    """[1, 2, 6] And nobody is restarted who did not die."""
    spec, expected = prepared(tmp_path, steps=250)
    outcomes = [
        disturbed(tmp_path / str(seed), seed, 8, spec, expected) for seed in range(100, 104)
    ]
    failed = {replay_command(o.seed, 8, 250): o.problems for o in outcomes if o.problems}
    assert failed == {}
    assert [len(outcome.done) for outcome in outcomes] == [8] * len(outcomes)
