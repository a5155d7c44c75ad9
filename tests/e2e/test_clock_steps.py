"""Somebody sets the clock of the machine, hours forward and back: jobs and processes do not care.

Processes are told another time; the machine's own clock stays as it is.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from planaria.job import JobSpec
from support.repository import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_NODES = 3
HOUR_SECONDS = 3600


class Clock:
    """The time of day of all processes that are started with it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self.set_ahead(0)
        monkeypatch.setenv("PLANARIA_TEST_CLOCK", str(path))
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/support/set_clock"))

    def set_ahead(self, seconds: float) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(self._path)


@pytest.fixture
def clock(no_forks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(tmp_path / "clock", monkeypatch)


@pytest.mark.parametrize("seconds", [2 * HOUR_SECONDS, -2 * HOUR_SECONDS])
def test_the_clock_is_set_while_a_job_trains(
    clock: Clock,
    cluster: Cluster,
    text: Path,
    seconds: float,
    digest_of: Callable[[JobSpec], str],
) -> None:
    """[7, 10] Nobody is lost by it; agents find, adopt and end the engines that are there."""
    spec = small_job(text, training__steps=100, resources__min_nodes=NUM_NODES)
    cluster.start(NUM_NODES)
    job_id = cluster.client.submit(spec).id
    cluster.wait_for_step(job_id, 3)
    engines = cluster.engine_pids("node-1")
    clock.set_ahead(seconds)
    cluster.kill_agent("node-1")
    cluster.start_node("node-1")
    cluster.wait_for("node-1 to be back", lambda: cluster.is_ready("node-1"))
    cluster.kill_engines("node-2")
    cluster.wait_for("a recovery", lambda: bool(cluster.client.job_recoveries(job_id)))
    clock.set_ahead(0)
    cluster.kill_coordinator()
    cluster.start_coordinator()
    assert cluster.engine_pids("node-1") == engines
    end = cluster.wait_for_end(job_id)
    assert end.state == "SUCCEEDED", end.error
    assert end.final_digest == digest_of(spec)
    assert "engine_adopted" in (cluster.folder / "node-1.log").read_text()
    events = [event.type for event in cluster.client.events()]
    assert "node_lost" not in events
    assert events.count("engine_lost") == 1
    assert min(end.time_seconds.values()) >= 0
    cluster.wait_for("all engines to end", lambda: not any(map(cluster.engine_pids, cluster.nodes)))
