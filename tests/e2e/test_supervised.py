"""`planaria up` with real services: what ends is started again, and jobs do not notice."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.common.jobs import small_job
from benchmarks.common.postgres import postgres_server
from planaria import Client
from planaria.job import JobSpec
from planaria.local import cluster as local_cluster
from planaria.local import state as local_state
from planaria.local.startup import ClusterOptions
from planaria.local.state import LocalCluster
from planaria.local.supervisor import start_supervised
from support.postgres import needs_postgres

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TIMEOUT_SECONDS = 90.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as everything:
        yield everything


def start(stack: ExitStack, folder: Path, num_nodes: int, url: str | None = None) -> LocalCluster:
    cluster = start_supervised(
        ClusterOptions(
            num_nodes=num_nodes,
            accelerators_per_node=1,
            port=0,
            data_dir=folder,
            database_url=url,
        )
    )
    stack.callback(lambda: local_cluster.stop(now(cluster)))
    return cluster


def now(cluster: LocalCluster) -> LocalCluster:
    """Return the cluster with the processes that it has now."""
    return local_state.load(cluster.state_file) or cluster


def pid_of(cluster: LocalCluster, name: str) -> int:
    return next(record.pid for record in now(cluster).processes if record.name == name)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_service_may_be_killed_while_a_job_trains(
    stack: ExitStack, tmp_path: Path, text: Path, digest_of: Callable[[JobSpec], str]
) -> None:
    """An agent comes back within its lease and adopts its engine: no recovery."""
    spec = small_job(text, training__steps=100, resources__min_nodes=3)
    cluster = start(stack, tmp_path / "up", 3)
    token = Path(cluster.token_file).read_text().strip()
    client = stack.enter_context(Client(cluster.http_url, token=token))
    job = client.submit(spec)
    wait_until(lambda: client.get_job(job.id).step >= 3)
    killed = {name: pid_of(cluster, name) for name in ("node-2", "planner", "coordinator")}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(pid_of(cluster, name) != pid for name, pid in killed.items()))

    def has_ended() -> bool:
        try:
            return client.get_job(job.id).is_done
        except Exception:  # until the coordinator is back
            return False

    wait_until(has_ended)
    end = client.get_job(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert client.job_recoveries(job.id) == ()
    assert end.final_digest == digest_of(spec)
    assert "engine_adopted" in (tmp_path / "up" / "logs" / "node-2.log").read_text()


@needs_postgres
def test_of_two_coordinators_on_one_database_the_older_stays_down(
    stack: ExitStack, tmp_path: Path
) -> None:
    url = stack.enter_context(postgres_server())
    first = start(stack, tmp_path / "first", 1, url)
    pid = pid_of(first, "coordinator")
    second = start(stack, tmp_path / "second", 1, url)
    log = tmp_path / "first" / "logs" / "supervisor.log"
    wait_until(lambda: "another coordinator uses its database" in log.read_text())
    time.sleep(3)  # longer than its pause
    assert pid_of(first, "coordinator") == pid
    assert not any(name in log.read_text() for name in ("signal", "exit status"))
    token = Path(second.token_file).read_text().strip()
    assert stack.enter_context(Client(second.http_url, token=token)).list_jobs() == ()
