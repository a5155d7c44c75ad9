"""`planaria up` and `down` with small stand-ins for the parts: order, failures, and clean ends."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planaria.cli.main import main
from planaria.errors import InvalidArgumentError
from planaria.local import cluster as local_cluster
from planaria.local import state as local_state
from planaria.local.processes import find_workers, identify, is_alive, reap, start_module, stop
from planaria.local.startup import ClusterOptions
from unit.sdk.fake_api import Answer, FakeApi
from unit.sdk.samples import node

Capture = pytest.CaptureFixture[str]

PART = """\
import json, os, signal, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name = options.get("--node-id", __spec__.name)
with open(os.environ["STARTED"], "a") as file:
    file.write(json.dumps({"name": name, "pid": os.getpid(), "options": options}) + "\\n")
if name == os.environ.get("BROKEN"):
    sys.exit("error: " + name + " is broken")
facts = {"grpc_address": "127.0.0.1:" + str(os.getpid()), "http_url": os.environ["FAKE_URL"]}
print("a line of log", file=sys.stderr)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
print("ready " + json.dumps(facts), flush=True)
signal.pause()
"""


@pytest.fixture
def data_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: FakeApi
) -> Iterator[Path]:
    """A data directory; the parts are stand-ins, and the fake coordinator sees three nodes."""
    for module in ("planaria_planner", "planaria_coordinator", "planaria_worker"):
        path = tmp_path / "parts" / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(PART)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "parts"))
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    monkeypatch.setenv("FAKE_URL", coordinator.url)
    monkeypatch.delenv("PLANARIA_ADDRESS")
    nodes = [node(f"node-{index}") for index in (1, 2, 3)]
    coordinator.answer("GET /nodes", Answer(body={"nodes": []}), Answer(body={"nodes": nodes}))
    yield tmp_path / "data"
    with suppress(InvalidArgumentError):  # a test may have damaged it
        cluster = local_state.load(tmp_path / "data" / "up.json")
        if cluster is not None:  # first its supervisor, which would start the others again
            local_cluster.stop(cluster)
    started = {identify(started["pid"]) for started in read_started(tmp_path)}
    left = {process for process in started if process}
    stop(left | set(find_workers(str(tmp_path / "data"))), grace_seconds=30)


def read_started(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "started"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_started(tmp_path: Path, count: int) -> list[dict[str, Any]]:
    """Return what the parts wrote; `up` asks the coordinator, which is fake, and not them."""
    while len(started := read_started(tmp_path)) < count:
        time.sleep(0.01)
    return started


def up(data_dir: Path, *options: str) -> int:
    return main(["up", "--port", "0", "--data-dir", str(data_dir), *options])


def test_up_starts_every_part_with_what_the_one_before_announced(
    data_dir: Path, tmp_path: Path, coordinator: FakeApi, capsys: Capture
) -> None:
    assert up(data_dir, "--accelerators-per-node", "2") == 0
    planner, service, *agents = wait_started(tmp_path, 5)
    token_file = str(data_dir / "token")
    assert planner["options"]["--token-file"] == token_file
    assert service["options"]["--planner-addresses"] == f"127.0.0.1:{planner['pid']}"
    assert service["options"]["--data-dir"] == str(data_dir)
    assert sorted(agent["name"] for agent in agents) == ["node-1", "node-2", "node-3"]
    for agent in agents:
        assert agent["options"]["--coordinator"] == f"127.0.0.1:{service['pid']}"
        assert agent["options"]["--num-accelerators"] == "2"
        assert agent["options"]["--data-dir"] == str(data_dir / "nodes" / agent["name"])
    out = capsys.readouterr().out
    for fact in (coordinator.url, token_file, "node-2", str(agents[0]["pid"])):
        assert fact in out
    assert (data_dir / "token").stat().st_mode & 0o777 == 0o600
    bearer = f"Bearer {(data_dir / 'token').read_text().strip()}"
    assert coordinator.requests[0].headers["authorization"] == bearer
    assert main(["down"]) == 0


def test_down_finds_and_stops_all_and_a_new_up_is_possible(
    data_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert up(data_dir) == 0
    pids = [started["pid"] for started in wait_started(tmp_path, 5)]
    assert main(["down"]) == 0
    assert "stopped 6 processes" in capsys.readouterr().out
    assert [identify(pid) for pid in pids] == [None] * 5
    assert main(["down"]) == 1
    assert up(data_dir) == 0
    assert main(["down", "--data-dir", str(data_dir)]) == 0


def test_a_cluster_that_ended_gives_way_to_the_one_in_the_default_directory(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's cluster, started without `up`, is never found by itself."""
    monkeypatch.setenv("XDG_DATA_HOME", str(data_dir.parent / "share"))
    assert main(["up", "--port", "0"]) == 0
    other = local_cluster.start(
        ClusterOptions(num_nodes=3, accelerators_per_node=1, port=0, data_dir=data_dir)
    )
    default = local_cluster.find(None)
    assert default.data_dir == str(data_dir.parent / "share" / "planaria")
    local_state.point_to(other)
    document = default.state_file.read_text()
    default.state_file.write_text("{")  # is in nobody's way while the other runs
    assert local_cluster.find(None) == other
    default.state_file.write_text(document)
    assert main(["down"]) == 0
    assert local_cluster.find(None) == default
    assert main(["down"]) == 0


def test_down_stops_engines_and_agents_started_by_hand_too(data_dir: Path, tmp_path: Path) -> None:
    assert up(data_dir) == 0
    replacement = start_module(
        "planaria_worker",
        ["--node-id", "node-9", "--data-dir", str(data_dir / "nodes" / "node-9")],
        log_file=tmp_path / "replacement.log",
        environment={},
    )
    assert main(["down"]) == 0
    assert not is_alive(replacement)
    reap(replacement)


def test_a_second_up_on_a_running_cluster_is_refused(data_dir: Path, capsys: Capture) -> None:
    assert up(data_dir) == 0
    capsys.readouterr()
    assert up(data_dir) == 1
    assert f"a cluster of {data_dir} is running at" in capsys.readouterr().err
    assert main(["down"]) == 0


def test_up_after_a_crash_of_the_machine_starts_everything(data_dir: Path, tmp_path: Path) -> None:
    """The state file is still there; its pids are gone, or belong to somebody else."""
    assert up(data_dir) == 0
    wait_started(tmp_path, 5)
    stale = local_state.load(data_dir / "up.json")
    assert stale is not None
    for record in reversed(stale.processes):  # first the supervisor, which would start them again
        os.kill(record.pid, signal.SIGKILL)
        while is_alive(record.identity):
            time.sleep(0.01)
        reap(record.identity)
    ours = replace(stale.processes[0], pid=os.getpid())
    local_state.save(replace(stale, processes=(ours,)))
    assert up(data_dir) == 0
    assert main(["down"]) == 0


@pytest.mark.parametrize("broken", ["planaria_planner", "planaria_coordinator", "node-2"])
def test_a_part_that_fails_is_shown_and_everything_is_stopped(
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    coordinator: FakeApi,
    broken: str,
) -> None:
    monkeypatch.setenv("BROKEN", broken)
    coordinator.answer("GET /nodes", Answer(body={"nodes": [node("node-1"), node("node-3")]}))
    assert up(data_dir) == 1
    error = capsys.readouterr().err
    name = broken.removeprefix("planaria_")
    assert error.startswith(f"error: {name} ended before it was ready; the end of {data_dir}")
    assert error.endswith(f"  error: {broken} is broken\n")
    assert all(identify(started["pid"]) is None for started in read_started(tmp_path))
    assert not (data_dir / "up.json").exists()
    assert main(["down"]) == 1


def test_a_port_in_use_is_named_before_anything_starts(
    data_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert up(data_dir, "--port", str(port)) == 1
    assert capsys.readouterr().err == (
        f"error: port {port} is in use: choose another with --port, or 0 for a free one\n"
    )
    assert read_started(tmp_path) == []


def test_absent_parts_are_named_with_the_pip_command(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(local_cluster, "_PARTS", {"planaria_worker": "no_such_library"})
    assert up(data_dir) == 1
    assert capsys.readouterr().err == (
        "error: `planaria up` needs planaria_worker: pip install 'planaria[all]'\n"
    )


def test_a_database_url_is_not_shown_to_other_users(data_dir: Path, tmp_path: Path) -> None:
    url = "postgresql://user:secret@host/db"
    assert up(data_dir, "--database-url", url) == 0
    for started in read_started(tmp_path):
        assert "secret" not in Path(f"/proc/{started['pid']}/cmdline").read_text()
    environment = Path(f"/proc/{read_started(tmp_path)[1]['pid']}/environ").read_text()
    assert f"PLANARIA_COORDINATOR_DATABASE_URL={url}" in environment
    assert main(["down"]) == 0


def test_a_damaged_state_file_is_reported_in_one_line(data_dir: Path, capsys: Capture) -> None:
    data_dir.mkdir()
    (data_dir / "up.json").write_text("{")
    assert main(["down", "--data-dir", str(data_dir)]) == 1
    assert f"{data_dir}/up.json is damaged" in capsys.readouterr().err
