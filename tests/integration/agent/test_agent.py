"""The agent against a fake coordinator, with engine processes that have no model."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from integration.agent import fake_engine
from integration.agent.fake_worker_service import FakeWorkerService, serve
from planaria.api.common.v1.errors_pb2 import ErrorReason
from planaria.api.worker.v1.directive_pb2 import Copy, Directive, Export, Prepare, RollForward, Stop
from planaria.api.worker.v1.report_pb2 import EngineState
from planaria.api.worker.v1.worker_service_pb2 import Probe, Reach, Welcome
from planaria.local.processes import ProcessIdentity, open_process
from planaria_worker.agent import agent as agent_module
from planaria_worker.agent import engine_process
from planaria_worker.agent.agent import Agent
from planaria_worker.agent.engine_process import (
    CONFIG_FILE,
    LOG_FILE,
    SOCKET_FILE,
    EngineProcess,
    record_process,
)
from planaria_worker.agent.engines import Engines
from planaria_worker.agent.machine import Machine
from planaria_worker.agent.outbox import Outbox
from planaria_worker.agent.session import Session
from planaria_worker.agent.settings import WorkerSettings
from planaria_worker.engine_config import EngineConfig
from planaria_worker.link import socket_address

pytestmark = pytest.mark.integration

JOB_SPEC = {
    "model": {
        "family": "llama",
        "hidden_size": 8,
        "num_layers": 1,
        "num_heads": 1,
        "vocab_size": 256,
    },
    "training": {"steps": 1, "global_batch_size": 2, "microbatch_size": 1},
}


SECOND = Duration(seconds=1)
HANG_SECONDS = 20.0
MACHINE = Machine(num_accelerators=1, accelerator_kind="cpu", memory_bytes=2**30, transport="gloo")


def launch_fake(folder: Path, _: EngineConfig) -> EngineProcess:
    """Start an engine without a model where the agent would start a real one."""
    with (folder / LOG_FILE).open("ab") as log:
        child = subprocess.Popen(
            [
                sys.executable,
                *("-X", "planaria_worker"),  # agents know engines by their command lines
                fake_engine.__file__,
                *("--config", str(folder / CONFIG_FILE)),
            ],
            stdout=log,
            stderr=log,
        )
    children.append(child)
    return record_process(folder, child.pid, child.wait)


children: list[subprocess.Popen[bytes]] = []


@dataclass
class Node:
    """A running agent and what it needs."""

    data_dir: Path
    coordinator: FakeWorkerService
    port: int
    text: Path
    agent: Agent = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        settings = WorkerSettings(
            coordinator=(f"127.0.0.1:{self.port}",), node_id="node-0", data_dir=self.data_dir
        )
        outbox = Outbox()
        self.agent = Agent(
            settings=settings, machine=MACHINE, outbox=outbox, pid=os.getpid(), launch=launch_fake
        )
        self.agent.engines.adopt()
        session = Session(
            coordinators=settings.coordinator,
            token=None,
            node=self.agent,
            outbox=outbox,
            on_first_welcome=lambda: None,
        )
        self.tasks = [
            asyncio.create_task(session.run()),
            asyncio.create_task(self.agent.keep_leases()),
        ]

    async def crash(self) -> None:
        """Let the agent vanish without a word; its engines stay."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.agent.engines.close()

    def directive(self, directive_id: str, **command: object) -> Directive:
        return Directive(
            directive_id=directive_id,
            job_id="job",
            generation=1,
            engine_id="job/node-0/0/1",
            **command,  # type: ignore[arg-type]
        )

    def prepare(self, path: str) -> Directive:
        data = {"path": path, "tokenizer": "byte", "sequence_length": 4}
        spec = {**JOB_SPEC, "data": data}
        return self.directive("d-prepare", prepare=Prepare(job_spec=json.dumps(spec)))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    coordinator = FakeWorkerService()
    server, port = await serve(coordinator)
    text = tmp_path / "corpus.txt"
    text.write_text("to be or not to be, that is the question")
    running = Node(data_dir=tmp_path / "node", coordinator=coordinator, port=port, text=text)
    running.start()
    await coordinator.hello()
    yield running
    await running.agent.engines.stop_all()
    await running.crash()
    for child in children:
        child.wait()  # those of a crashed agent, too, are still this process's
    children.clear()
    await server.stop(None)


async def test_prepare_starts_an_engine_that_answers_directives(node: Node) -> None:
    await node.coordinator.send(node.prepare(str(node.text)))
    prepared = await node.coordinator.next("result")
    assert prepared.directive_id == "d-prepare"
    assert prepared.prepared.data_digest
    await node.coordinator.send(node.directive("d-copy", copy=Copy()))
    assert (await node.coordinator.next("result")).directive_id == "d-copy"
    beat = await node.coordinator.next("heartbeat")
    assert [engine.engine_id for engine in beat.engines] == ["job/node-0/0/1"]


async def test_a_repeated_directive_is_answered_again_but_takes_effect_once(node: Node) -> None:
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("result")
    answers = []
    for _ in range(2):
        await node.coordinator.send(node.directive("d-copy", copy=Copy()))
        answers.append(await node.coordinator.next("result"))
    assert answers[0] == answers[1]


async def test_data_that_is_not_there_is_named_with_the_node(node: Node) -> None:
    await node.coordinator.send(node.prepare("/nowhere/*.txt"))
    failure = (await node.coordinator.next("result")).failure
    assert failure.metadata["path"] == "/nowhere/*.txt"
    assert failure.message.startswith("node node-0: ")
    assert list(node.agent.engines) == []


async def test_the_end_of_an_engine_is_reported_with_its_last_words(node: Node) -> None:
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("result")
    await node.coordinator.send(node.directive("d-end", export=Export()))
    exited = await node.coordinator.next("engine_exited")
    assert exited.exit_code == -signal.SIGKILL
    assert exited.log_tail[-1] == "last words"


async def test_the_end_of_an_engine_is_reported_although_its_log_cannot_be_read(
    node: Node,
) -> None:
    """A file system that hangs silences nobody. What stands in for it here: a FIFO."""
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("result")
    (log,) = node.data_dir.glob(f"engines/*/{LOG_FILE}")
    log.unlink()
    os.mkfifo(log)
    heals = threading.Timer(HANG_SECONDS, open_and_close, [log])
    heals.start()
    try:
        await node.coordinator.send(node.directive("d-end", export=Export()))
        exited = await node.coordinator.next("engine_exited")
        await node.coordinator.next("heartbeat")
        assert heals.is_alive(), "the agent waited for the file system"
        assert (exited.exit_code, list(exited.log_tail)) == (-signal.SIGKILL, [])
    finally:
        heals.cancel()
        open_and_close(log)


def open_and_close(fifo: Path) -> None:
    """Let those end that wait to read it."""
    with contextlib.suppress(OSError):  # nobody does
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


async def test_an_engine_that_ended_before_it_was_ready_is_reported_when_requested_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that died with the news asks again, and does not wait for its deadline."""
    monkeypatch.setattr(fake_engine, "__file__", str(node.data_dir / "no_such_engine.py"))
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("engine_exited")
    await node.coordinator.send(node.prepare(str(node.text)))
    failure = (await node.coordinator.next("result")).failure
    assert failure.message == "node node-0 cannot start an engine: its process ended"


async def test_an_engine_that_cannot_be_watched_for_lack_of_descriptors_is_watched_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would learn of its end."""
    left = [1, 2]

    def open_scarcely(process: ProcessIdentity) -> int | None:
        if left:
            left.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return open_process(process)

    monkeypatch.setattr(engine_process, "open_process", open_scarcely)
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("result")
    await node.coordinator.send(node.directive("d-end", export=Export()))
    exited = await node.coordinator.next("engine_exited")
    assert exited.exit_code == -signal.SIGKILL
    assert left == []


async def test_an_engine_is_started_as_soon_as_the_machine_can(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk for a second is not reported; one that stays full is, as what may pass."""
    monkeypatch.setattr(agent_module, "START_PAUSE_SECONDS", 0.01)
    full = [True, True]

    def new_folder(engines: Engines, engine_id: str) -> Path:
        if full and full.pop():
            raise OSError(errno.ENOSPC, "No space left on device")
        return make_folder(engines, engine_id)

    make_folder = Engines.new_folder
    monkeypatch.setattr(Engines, "new_folder", new_folder)
    await node.coordinator.send(node.prepare(str(node.text)))
    assert (await node.coordinator.next("result")).prepared.data_digest
    full += [True] * 1_000
    other = node.prepare(str(node.text))
    other.directive_id, other.engine_id = "d-other", "job/node-0/0/2"
    await node.coordinator.send(other)
    failure = (await node.coordinator.next("result")).failure
    assert failure.reason == ErrorReason.ERROR_REASON_UNAVAILABLE
    assert "No space left on device" in failure.message


async def test_an_engine_that_says_nothing_is_ended(node: Node) -> None:
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    os.kill(pid, signal.SIGSTOP)
    welcome = Welcome()
    welcome.agent_lease.FromSeconds(10)
    welcome.progress_deadline.FromMilliseconds(100)
    node.agent.welcomed(welcome)
    node.tasks.append(asyncio.create_task(node.agent.end_silent_engines()))
    exited = await node.coordinator.next("engine_exited")
    assert exited.exit_code == -signal.SIGKILL


async def test_reports_of_an_engine_reach_the_coordinator(node: Node) -> None:
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("result")
    await node.coordinator.send(node.directive("d-commit", roll_forward=RollForward()))
    assert (await node.coordinator.next("link_failed")).peer_engine_id == "peer"


async def test_stop_is_answered_when_the_process_has_ended(node: Node) -> None:
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    await node.coordinator.send(node.directive("d-stop", stop=Stop()))
    assert (await node.coordinator.next("result")).HasField("stopped")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_stop_ends_an_engine_that_no_longer_runs_its_code(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the SIGKILL behind the grace. A stopped process hears neither socket nor SIGTERM."""
    monkeypatch.setattr("planaria_worker.agent.engines.STOP_GRACE_SECONDS", 0.2)
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    os.kill(pid, signal.SIGSTOP)
    await node.coordinator.send(node.directive("d-stop", stop=Stop()))
    assert (await node.coordinator.next("result")).HasField("stopped")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_new_session_follows_a_lost_one_and_the_engine_lives_on(node: Node) -> None:
    """Guard: the session's catch of everything, not of AioRpcError alone."""
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    node.coordinator.cut()
    hello = await node.coordinator.hello()
    assert [engine.pid for engine in hello.engines] == [pid]


async def test_a_probe_is_answered_with_how_another_machine_answers(node: Node) -> None:
    """Also one that makes no sense, and none is in the way of directives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        await node.coordinator.ask(probe=Probe(probe_id="a", addresses=[there], timeout=SECOND))
        answer = await node.coordinator.next("probe_result")
        assert (answer.probe_id, answer.reach) == ("a", Reach.REACH_REACHABLE)
    await node.coordinator.ask(probe=Probe(probe_id="b", addresses=["nonsense"]))
    answer = await node.coordinator.next("probe_result")
    assert (answer.probe_id, answer.reach) == ("b", Reach.REACH_UNSPECIFIED)


async def test_reports_come_again_in_the_next_session_until_they_are_stored(node: Node) -> None:
    """A coordinator that dies with what it was told is told again; a stored report never."""
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("result")
    await node.coordinator.send(node.directive("d-commit", roll_forward=RollForward()))
    report = await node.coordinator.next_request("step_report")
    await node.coordinator.next("result")
    node.coordinator.cut()
    await node.coordinator.hello()
    assert await node.coordinator.next_request("step_report", "result") == report
    await node.coordinator.acknowledge(report.report_number)
    await node.coordinator.send(node.directive("d-copy", copy=Copy()))
    await node.coordinator.next("result")
    node.coordinator.cut()
    await node.coordinator.hello()
    await node.coordinator.send(node.directive("d-copy-2", copy=Copy()))
    first = await node.coordinator.next_request("step_report", "result")
    assert first.WhichOneof("message") == "result"


async def test_reports_outlive_the_agent_until_they_are_stored(node: Node) -> None:
    """[5] The engine tells the next agent again what the coordinator may not have.

    The second agent dies, too, after it was told; the third hears nothing of a stored report.
    """
    await node.coordinator.send(node.prepare(str(node.text)))
    await node.coordinator.next("result")
    await node.coordinator.send(node.directive("d-commit", roll_forward=RollForward()))
    report = await node.coordinator.next("step_report")
    await node.coordinator.next("result")
    await node.crash()
    node.start()
    await node.coordinator.hello()
    again = await node.coordinator.next_request("step_report")
    assert again.step_report == report
    await node.coordinator.acknowledge(again.report_number)
    await node.coordinator.send(node.directive("d-copy", copy=Copy()))
    await node.coordinator.next("result")  # behind the word that the report is stored
    await node.crash()
    node.start()
    await node.coordinator.hello()
    await node.coordinator.send(node.directive("d-copy-2", copy=Copy()))
    first = await node.coordinator.next_request("step_report", "result")
    assert first.WhichOneof("message") == "result"


async def test_a_repeated_report_over_the_same_agent_is_forwarded_once(node: Node) -> None:
    """The link broke and was opened again: the coordinator hears nothing of it."""
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    await node.coordinator.send(node.directive("d-commit", roll_forward=RollForward()))
    await node.coordinator.next("result")
    (handle,) = node.agent.engines
    with socket.socket(socket.AF_UNIX) as other:
        with socket_address(handle.folder / SOCKET_FILE) as address:
            other.connect(address)
        await asyncio.to_thread(other.recv, 1)  # the newest connection counts, until it ends
    await node.coordinator.send(node.directive("d-copy", copy=Copy()))
    first = await node.coordinator.next_request("step_report", "result")
    assert first.WhichOneof("message") == "result"
    assert first.result.copied.bytes == 2
    assert (handle.snapshot.pid, handle.snapshot.state) == (
        pid,
        EngineState.ENGINE_STATE_PARKED,
    )


async def test_a_restarted_agent_adopts_the_engines_of_its_predecessor(node: Node) -> None:
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    first = node.agent.hello().agent_id
    await node.crash()
    node.start()
    hello = await node.coordinator.hello()
    assert hello.agent_id != first
    assert [engine.pid for engine in hello.engines] == [pid]
    await node.coordinator.send(node.directive("d-copy", copy=Copy()))
    assert (await node.coordinator.next("result")).directive_id == "d-copy"


async def test_an_engine_of_an_older_version_is_ended_and_not_adopted(node: Node) -> None:
    """It would misread the directives of this one. Its configuration shows its version."""
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    await node.crash()
    (path,) = node.data_dir.glob(f"engines/*/{CONFIG_FILE}")
    config = json.loads(path.read_text())
    config["base_path"] = config.pop("initial_path")
    path.write_text(json.dumps(config))

    node.start()

    assert list((await node.coordinator.hello()).engines) == []
    (child,) = (each for each in children if each.pid == pid)
    assert await asyncio.to_thread(child.wait, 20) == -signal.SIGKILL


async def test_an_engine_that_nothing_describes_is_ended(node: Node) -> None:
    """It would keep its accelerator: an older version wrote its process down in another way."""
    await node.coordinator.send(node.prepare(str(node.text)))
    pid = (await node.coordinator.next("result")).prepared.engine.pid
    await node.crash()
    (path,) = node.data_dir.glob("engines/*/process.json")
    path.write_text(json.dumps({"pid": pid, "create_time": 1.0}))

    node.start()

    assert list((await node.coordinator.hello()).engines) == []
    (child,) = (each for each in children if each.pid == pid)
    assert await asyncio.to_thread(child.wait, 20) == -signal.SIGKILL


async def test_an_engine_that_a_killed_agent_began_to_start_is_started(node: Node) -> None:
    """It had made the engine's folder; the directive is repeated to its successor.

    Guard: a process that the first agent asked for, and that comes late, finds nothing of the
    second one's: each would take the other's socket.
    """
    folder = node.agent.engines.new_folder("job/node-0/0/1")
    (folder / "config.json").write_text("{")
    await node.coordinator.send(node.prepare(str(node.text)))
    result = await node.coordinator.next("result")
    assert result.HasField("prepared"), result.failure.message
    assert [each.name for each in folder.iterdir()] == ["config.json"]
    assert (folder / "config.json").read_text() == "{"
