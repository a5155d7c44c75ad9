"""Random events on real processes, a little of benchmarks/chaos: nobody can tell afterwards."""

from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import replay_command
from benchmarks.chaos.runner import Expected, chaos_job, run_schedule, undisturbed
from benchmarks.common.jobs import write_text
from planaria.job import JobSpec

pytestmark = pytest.mark.e2e


def prepared(folder: Path, steps: int) -> tuple[JobSpec, Expected]:
    spec = chaos_job(write_text(folder / "text.txt"), steps)
    return spec, undisturbed(spec, folder / "cache")


def test_a_few_random_events_leave_no_trace_in_the_model(tmp_path: Path) -> None:
    """[1, 2, 6] Seed 78508 kills a node and an engine; and the coordinator, if links can be cut."""
    spec, expected = prepared(tmp_path, steps=120)
    outcome = run_schedule(tmp_path / "run", 78508, num_events=3, spec=spec, expected=expected)
    assert outcome.problems == (), replay_command(78508, 3, 120)
    assert {event.kind for event in outcome.done} > {"kill", "kill_engine"}
    assert outcome.num_recoveries


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_random_events_leave_no_trace_in_the_model(tmp_path: Path) -> None:
    """[1, 2, 6] And nobody is restarted who did not die."""
    spec, expected = prepared(tmp_path, steps=250)
    outcomes = [
        run_schedule(tmp_path / str(seed), seed, num_events=8, spec=spec, expected=expected)
        for seed in range(100, 104)
    ]
    failed = {replay_command(o.seed, 8, 250): o.problems for o in outcomes if o.problems}
    assert failed == {}
    assert [len(outcome.done) for outcome in outcomes] == [8] * len(outcomes)
