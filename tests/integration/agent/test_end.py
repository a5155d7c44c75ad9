"""An agent that is asked to end does so at once, whatever its threads are at."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.common.processes import Part, start_process
from integration.agent.fake_worker_service import FakeWorkerService, serve
from planaria.api.worker.v1.directive_pb2 import Directive, Prepare

pytestmark = pytest.mark.integration

SPARSE_BYTES = 1 << 40
"""To hash them takes minutes."""
END_SECONDS = 20.0
SPEC = {
    "model": {
        "family": "llama",
        "hidden_size": 8,
        "num_layers": 1,
        "num_heads": 1,
        "vocab_size": 256,
    },
    "training": {"steps": 1, "global_batch_size": 2, "microbatch_size": 1},
}


@contextlib.asynccontextmanager
async def agent_of(coordinator: FakeWorkerService, folder: Path) -> AsyncIterator[Part]:
    """Run the process of an agent."""
    server, port = await serve(coordinator)
    arguments = [f"--coordinator=127.0.0.1:{port}", "--node-id=n0", f"--data-dir={folder / 'n0'}"]
    log = folder / "agent.log"
    process = start_process("planaria_worker", arguments, environment={}, log=log)
    agent = Part(name="agent", process=process, log=log)
    try:
        yield agent
    finally:
        agent.end()
        await server.stop(None)


def wait_until_it_reads(pid: int, path: Path) -> None:
    """Wait until a process has a file open."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if descriptor.readlink() == path:
                    return
        time.sleep(0.05)
    raise AssertionError(f"{path} is not read")


async def test_an_agent_that_hashes_data_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """A file system that hangs would be another reason for a thread that does not end."""
    text = tmp_path / "large.txt"
    with text.open("wb") as file:
        os.truncate(file.fileno(), SPARSE_BYTES)
    data = {"path": str(text), "tokenizer": "byte", "sequence_length": 4}
    prepare = Prepare(job_spec=json.dumps({**SPEC, "data": data}))
    directive = Directive(directive_id="d", job_id="job", engine_id="e", prepare=prepare)
    coordinator = FakeWorkerService()
    async with agent_of(coordinator, tmp_path) as agent:
        await coordinator.hello()
        await coordinator.send(directive)
        await asyncio.to_thread(wait_until_it_reads, agent.process.pid, text)
        agent.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(agent.process.wait, END_SECONDS) == 0
