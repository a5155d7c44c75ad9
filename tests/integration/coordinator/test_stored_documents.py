"""What is stored as JSON is read whole or not at all: no key is dropped silently."""

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.coordinator.process import SPEC, command, environment, run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def with_a_job(tmp_path_factory: pytest.TempPathFactory, planner_address: str) -> Path:
    """Return the folder of a coordinator whose database has one job."""
    data_dir = tmp_path_factory.mktemp("with-a-job")
    with run(data_dir, f"--planner-addresses={planner_address}") as running:
        created = running.client.post("/api/v1/jobs", json={"spec": SPEC})
        assert created.status_code == 201, created.text
    return data_dir


def change_run(data_dir: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Change the stored run of the only job; return the job's id."""
    with sqlite3.connect(data_dir / "coordinator.db") as connection:
        ((job_id, document),) = connection.execute("SELECT job_id, run FROM runs")
        stored = json.loads(document)
        change(stored)
        connection.execute("UPDATE runs SET run = ? WHERE job_id = ?", (json.dumps(stored), job_id))
    connection.close()
    return str(job_id)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda run: run.update(base=None), "has the unknown key base"),
        (
            lambda run: run["requirements"].update(colour="red"),
            "has the unknown key requirements.colour",
        ),
        (lambda run: run.pop("nodes_per_replica"), "lacks the key nodes_per_replica"),
        (lambda run: run.update(generation="many"), "at generation"),
    ],
)
def test_a_run_that_cannot_be_read_whole_fails_the_start(
    tmp_path: Path,
    with_a_job: Path,
    change: Callable[[dict[str, Any]], object],
    problem: str,
) -> None:
    """The coordinator names the job and the key, and leaves the database alone."""
    data_dir = shutil.copytree(with_a_job, tmp_path / "changed")
    job_id = change_run(data_dir, change)

    done = subprocess.run(
        command(data_dir),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert f"the stored run of {job_id} " in done.stderr
    assert problem in done.stderr
