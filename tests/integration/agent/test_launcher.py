"""Engines are forked from a process that has torch loaded, and are processes in their own right."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import psutil
import pytest

from planaria_worker.agent.engine_process import LOG_FILE, find_engine
from planaria_worker.agent.launcher import Launcher

pytestmark = pytest.mark.integration

_CODE = """
import torch
asked = []
torch.cuda.is_available = lambda: bool(asked.append("is_available"))
torch.cuda.device_count = lambda: int(bool(asked.append("device_count")))
import planaria_worker.engine.preload
assert not asked, asked
"""


@pytest.mark.slow
def test_what_engines_are_forked_from_asks_nothing_of_cuda() -> None:
    """A process that has done so cannot be forked into one that uses a GPU."""
    subprocess.run([sys.executable, "-c", _CODE], check=True)


async def test_an_engine_is_forked_found_again_and_its_end_is_known(tmp_path: Path) -> None:
    """A configuration that is not there ends it with status 2 and one line in its log."""
    launcher = Launcher()
    launcher.warm_up()
    process = await asyncio.to_thread(launcher.launch, tmp_path)
    assert await process.wait() == 2
    assert "config.json" in (tmp_path / LOG_FILE).read_text()
    assert find_engine(tmp_path) is None


async def test_an_engine_has_its_own_session_and_its_folder_in_its_command(
    tmp_path: Path,
) -> None:
    launcher = Launcher()
    launcher.warm_up()
    config = tmp_path / "config.json"
    os.mkfifo(config)
    process = await asyncio.to_thread(launcher.launch, tmp_path)
    writer = await asyncio.to_thread(os.open, config, os.O_WRONLY)  # until the engine reads it
    assert str(tmp_path) in " ".join(psutil.Process(process.pid).cmdline())
    assert find_engine(tmp_path) == dataclasses.replace(process, exit_code=ANY)
    assert os.getsid(process.pid) == process.pid
    process.signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    os.close(writer)
