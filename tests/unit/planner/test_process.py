"""`planaria-planner` as a process: it says where it is, answers, and ends when told to."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from planaria_common.grpcclient import open_channel
from planaria_common.grpcwire import is_healthy


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "planaria_planner", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.integration
async def test_the_service_prints_its_address_and_ends_on_sigterm() -> None:
    process = await start("--port", "0", PLANARIA_PLANNER_LOG_FORMAT="json")
    assert process.stdout is not None
    try:
        word, _, facts = (await process.stdout.readline()).decode().partition(" ")
        assert word == "ready"
        assert json.loads(facts)["pid"] == process.pid
        channel = open_channel(json.loads(facts)["grpc_address"])
        assert await is_healthy(channel, timeout_seconds=30)
        await channel.close()
    finally:
        process.terminate()
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert out == b""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--port", "many"], 2, "--port (PLANARIA_PLANNER_PORT)"),
        (["--host", "0.0.0.0", "--port", "0"], 2, "--host"),  # noqa: S104 - it is refused
        (["--token-file", "/nowhere/token"], 1, "token file /nowhere/token cannot be read"),
    ],
)
async def test_a_bad_setting_is_one_line_and_an_exit_status(
    tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    process = await start(*arguments)
    out, err = await process.communicate()
    assert process.returncode == status
    assert out == b""
    lines = err.decode().splitlines()
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]
    assert len(lines) == 1
