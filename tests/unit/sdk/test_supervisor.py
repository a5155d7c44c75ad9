"""What `planaria up` started is started again when it ends; stand-ins for the parts."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planaria.cli.main import main
from planaria.local import state as local_state
from planaria.local.processes import identify, is_alive, reap
from planaria.local.supervisor import REPLACED_STATUS, pause_seconds
from planaria_common.service import REPLACED_STATUS as STATUS_OF_SERVICES
from unit.sdk.test_local_cluster import data_dir, read_started, up, wait_started

__all__ = ["data_dir"]  # a fixture

TIMEOUT_SECONDS = 30.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def said(data_dir: Path) -> str:
    return (data_dir / "logs" / "supervisor.log").read_text()


def recorded(data_dir: Path, name: str) -> local_state.ProcessRecord:
    cluster = local_state.load(data_dir / "up.json")
    assert cluster is not None
    return next(record for record in cluster.processes if record.name == name)


def test_pauses_double_up_to_a_limit() -> None:
    assert [pause_seconds(n) for n in (1, 2, 3, 5, 6, 9999)] == [1, 2, 4, 16, 30, 30]


def test_parts_that_end_are_started_again_on_the_same_ports(data_dir: Path, tmp_path: Path) -> None:
    assert up(data_dir) == 0
    planner, coordinator, *agents = wait_started(tmp_path, 5)
    victim = next(agent for agent in agents if agent["name"] == "node-2")
    for started in (planner, coordinator, victim):
        os.kill(started["pid"], signal.SIGKILL)
    again = {started["name"]: started for started in wait_started(tmp_path, 8)[5:]}
    assert again["planaria_planner"]["options"] == {
        **planner["options"],
        "--port": str(planner["pid"]),  # the stand-in announces its pid
    }
    options = again["planaria_coordinator"]["options"]
    assert options["--grpc-port"] == str(coordinator["pid"])
    assert options["--http-port"] == os.environ["FAKE_URL"].rpartition(":")[2]
    assert again["node-2"]["options"] == victim["options"]
    assert "node-2 ended with signal 9; it starts again in 1 s" in said(data_dir)
    wait_until(lambda: recorded(data_dir, "node-2").pid == again["node-2"]["pid"])
    assert main(["down"]) == 0
    pids = [started["pid"] for started in read_started(tmp_path)]
    assert [identify(pid) for pid in pids] == [None] * 8


def test_a_coordinator_that_was_replaced_stays_down(data_dir: Path, tmp_path: Path) -> None:
    """Two of them on one database would replace each other for ever."""
    assert REPLACED_STATUS == STATUS_OF_SERVICES
    assert up(data_dir) == 0
    planner, coordinator, *_ = wait_started(tmp_path, 5)
    os.kill(coordinator["pid"], signal.SIGUSR1)
    wait_until(lambda: "coordinator ended: another coordinator uses its database" in said(data_dir))
    os.kill(planner["pid"], signal.SIGKILL)  # it ended later, and comes back
    assert wait_started(tmp_path, 6)[5]["name"] == "planaria_planner"
    assert identify(coordinator["pid"]) is None
    assert main(["down"]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_to_the_supervisor_ends_everything(
    data_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    assert up(data_dir) == 0
    supervisor = recorded(data_dir, "supervisor").identity
    os.kill(supervisor.pid, number)
    wait_until(lambda: not is_alive(supervisor))
    reap(supervisor)
    assert [identify(started["pid"]) for started in read_started(tmp_path)] == [None] * 5
    assert not (data_dir / "up.json").exists()


def test_a_second_up_in_a_folder_is_refused_before_it_harms_the_first(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one is still starting: nothing is written down yet."""
    assert up(data_dir) == 0
    started = wait_started(tmp_path, 5)
    (data_dir / "up.json").rename(tmp_path / "up.json")
    assert up(data_dir) == 1
    assert "another `planaria up` uses" in capsys.readouterr().err
    assert len(read_started(tmp_path)) == len(started)
    (tmp_path / "up.json").rename(data_dir / "up.json")
    assert all(identify(each["pid"]) is not None for each in started)
