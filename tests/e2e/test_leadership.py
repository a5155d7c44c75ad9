"""A coordinator is frozen, another takes its place, and the first one wakes up."""

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.common.cluster import Cluster
from benchmarks.common.jobs import small_job
from benchmarks.common.ports import free_port
from benchmarks.common.postgres import postgres_server
from benchmarks.common.processes import Part
from benchmarks.oracle.from_spec import reference_run
from planaria.job import JobSpec
from planaria_common.service import REPLACED_STATUS
from support.postgres import needs_postgres
from support.wire import Wire

pytestmark = [pytest.mark.e2e, needs_postgres]

NUM_NODES = 4


class Relayed(Cluster):
    """A cluster whose agents reach whichever coordinator a wire leads to."""

    wire: Wire

    def __init__(self, folder: Path, database_url: str) -> None:
        super().__init__(folder, database_url=database_url)
        self.wire = Wire(self.host, self._grpc_port)

    def node_options(self, node_id: str) -> Mapping[str, object]:
        return {"coordinator": f"{self.host}:{self.wire.port}"}

    def replace_coordinator(self) -> Part:
        """Freeze the coordinator, start another on its database, and return the frozen one."""
        frozen = self.coordinator
        assert frozen is not None
        self.signal_coordinator(signal.SIGSTOP)
        self._http_port, self._grpc_port = free_port(), free_port()
        self.client.close()
        self._client = None
        self.start_coordinator()
        self.wire.lead_to(self._grpc_port)
        return frozen

    def stop(self) -> None:
        super().stop()
        self.wire.close()


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[Relayed]:
    with postgres_server() as url, Relayed(tmp_path / "cluster", url) as running:
        running.start(NUM_NODES)
        yield running


@pytest.fixture
def spec(text: Path) -> JobSpec:
    return small_job(text, training__steps=40, resources__min_nodes=NUM_NODES)


def test_a_coordinator_that_was_replaced_ends_and_changes_nothing(
    relayed: Relayed, spec: JobSpec, tmp_path: Path
) -> None:
    """Training goes on under its successor, and ends with the model of an undisturbed run."""
    job = relayed.client.submit(spec)
    relayed.wait_for_step(job.id, 3)
    frozen = relayed.replace_coordinator()
    try:
        relayed.wait_for_nodes(NUM_NODES)
        step = relayed.client.get_job(job.id).step
        relayed.wait_for_step(job.id, step + 3)
        frozen.process.send_signal(signal.SIGCONT)
        relayed.wait_for("the first one to end", lambda: frozen.process.poll() is not None)
        assert frozen.process.poll() == REPLACED_STATUS
    finally:
        frozen.end()
    assert "another coordinator has opened the database" in frozen.log.read_text()
    end = relayed.wait_for_end(job.id)
    assert end.state == "SUCCEEDED", end.error
    assert relayed.client.job_recoveries(job.id) == ()
    assert end.final_digest == reference_run(spec, tmp_path / "oracle").digest
    assert {node.state for node in relayed.client.list_nodes()} == {"READY"}
