"""Engines are forked from processes that have libraries loaded, and are processes of their own."""

import asyncio
import dataclasses
import errno
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import psutil
import pytest

from benchmarks.common.jobs import small_job
from planaria_common.version import PROTOCOL_VERSION
from planaria_worker.agent import zygote
from planaria_worker.agent.engine_process import LOG_FILE, EngineProcess, find_engine
from planaria_worker.agent.launcher import THREAD_LIMITS, Launcher
from planaria_worker.engine_config import EngineConfig

pytestmark = pytest.mark.integration

Launch = Callable[..., Coroutine[Any, Any, EngineProcess]]

FAMILY = {"family": "llama", "hidden_size": 64, "num_layers": 6, "num_heads": 2, "vocab_size": 256}
IMPORTED = {"import_path": "somewhere:layers"}

_PRELOAD = """
import sys, torch
asked = []
torch.cuda.is_available = lambda: bool(asked.append("is_available"))
torch.cuda.device_count = lambda: int(bool(asked.append("device_count")))
import planaria_worker.engine.process.preload
assert not asked, asked
assert "transformers" not in sys.modules
import planaria_worker.models.transformer
assert not asked, asked
import psutil
assert psutil.Process().num_threads() == 1, "a process with threads cannot be forked safely"
"""

_ENGINE = """
import dataclasses, sys
from pathlib import Path
sys.path += sys.argv[2:]
import planaria_worker.engine.process.preload
from planaria_worker.agent.preparation import prepare_data
from planaria_worker.engine.process.preparation import prepare
from benchmarks.common.jobs import small_job, write_text
from support.own_model import layers
from test_launcher import config_for

folder = Path(sys.argv[1])
model = {"import_path": "support.own_model:layers", "arguments": {"width": 24}}
spec = small_job(write_text(folder / "text"), model=model).model_dump_json()
config = dataclasses.replace(
    config_for(model),
    job_spec=spec,
    data_path=str(prepare_data(spec, folder, "node").path),
    forward_flops=tuple(range(100, 100 + len(layers(24)))),
)
measured = prepare(config).measured
assert measured[0].forward_flops == 100, measured
slow = {"transformers", "torch._dynamo", "torch._inductor"} & sys.modules.keys()
assert not slow, slow
"""

_AGENT = """
import sys, time
from pathlib import Path
sys.path.append(sys.argv[2])
from test_launcher import FAMILY, config_for
from planaria_worker.agent.launcher import Launcher
launcher = Launcher()
launcher.warm_up()
print(launcher.launch(Path(sys.argv[1]), config_for(FAMILY)).pid, flush=True)
time.sleep(600)
"""


def config_for(model: dict[str, Any]) -> EngineConfig:
    return EngineConfig(
        protocol_version=PROTOCOL_VERSION,
        engine_id="engine",
        job_id="job",
        generation=1,
        prepare_directive_id="",
        job_spec=small_job(Path("/somewhere/text"), model=model).model_dump_json(),
        job_secret="secret",
        socket_path="/somewhere/engine.sock",
        data_path="/somewhere/tokens",
    )


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    launcher.warm_up()
    yield launcher
    launcher.close()


@pytest.fixture
def launch(launcher: Launcher) -> Iterator[Launch]:
    """Launch an engine that is ended, if need be, with the test."""
    processes = []

    async def launch(folder: Path, model: dict[str, Any], by: Launcher = launcher) -> EngineProcess:
        process = await asyncio.to_thread(by.launch, folder, config_for(model))
        processes.append(process)
        return process

    yield launch
    for process in processes:
        process.signal(signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of_patience(tmp_path / "patience")


def folder_of_patience(folder: Path) -> Path:
    """Make a folder whose engine waits for its configuration without end."""
    folder.mkdir()
    os.mkfifo(folder / "config.json")
    return folder


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def parent_of(process: EngineProcess) -> psutil.Process:
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    return parent


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_the_fork_server_does_not_touch_cuda_and_starts_quickly() -> None:
    """A process that has asked cannot be forked into one that uses a GPU; transformers is slow."""
    environment = {**os.environ, **THREAD_LIMITS}
    subprocess.run([sys.executable, "-c", _PRELOAD], env=environment, check=True)


def test_an_engine_that_others_wait_for_imports_nothing_that_takes_seconds(tmp_path: Path) -> None:
    """A joiner's, of a model by import path: it need not count what others have counted."""
    paths = [str(Path(__file__).parent), *sys.path]
    subprocess.run([sys.executable, "-c", _ENGINE, str(tmp_path), *paths], check=True)


@pytest.mark.parametrize("model", [FAMILY, IMPORTED], ids=["family", "imported"])
async def test_an_engine_is_forked_found_again_and_its_end_is_known(
    launch: Launch, tmp_path: Path, model: dict[str, Any]
) -> None:
    """A configuration that is not there ends it with status 2 and one line in its log."""
    process = await launch(tmp_path, model)
    assert await process.wait() == 2
    assert "config.json" in (tmp_path / LOG_FILE).read_text()
    assert find_engine(tmp_path) is None


@pytest.mark.parametrize("model", [FAMILY, IMPORTED], ids=["family", "imported"])
async def test_an_engine_has_its_own_group_and_its_folder_in_its_command(
    launch: Launch, folder: Path, model: dict[str, Any]
) -> None:
    process = await launch(folder, model)
    wait_until(lambda: str(folder) in " ".join(psutil.Process(process.pid).cmdline()))
    assert find_engine(folder) == dataclasses.replace(process, exit_code=ANY)
    assert os.getpgid(process.pid) == process.pid  # what ends the agent's group leaves it alone
    assert os.getsid(process.pid) == os.getsid(0)  # Linux divides the processor by sessions
    process.signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL


async def test_an_engine_that_needs_no_transformers_does_not_wait_for_them(
    launch: Launch, tmp_path: Path
) -> None:
    """On a node that has just started; later it comes from the same process as others."""
    early, family, late = (
        folder_of_patience(tmp_path / name) for name in ("early", "family", "late")
    )
    fresh = Launcher()  # has loaded nothing
    processes = [
        await launch(early, IMPORTED, by=fresh),
        await launch(family, FAMILY, by=fresh),
        await launch(late, IMPORTED, by=fresh),
    ]
    parents = [parent_of(process) for process in processes]
    for process in processes:
        process.signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
    assert parents[1].cmdline()[0] == zygote.TITLE
    assert parents[0] == parents[1].parent()
    assert parents[1] == parents[2]
    fresh.close()


async def test_another_process_is_loaded_if_that_with_transformers_is_lost(
    launch: Launch, tmp_path: Path, folder: Path
) -> None:
    """Its engines live on, but nobody learns any more how they ended."""
    process = await launch(folder, FAMILY)
    parent = parent_of(process)
    parent.send_signal(signal.SIGINT)  # of the agent's terminal: nothing happens
    parent.kill()
    assert process.is_alive
    ended = await launch(tmp_path, FAMILY)
    assert await ended.wait() == 2
    process.signal(signal.SIGKILL)
    assert await process.wait() is None


async def test_a_stuck_zygote_is_given_up(
    launch: Launch, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await launch(folder, FAMILY)
    parent = parent_of(process)
    parent.suspend()
    process.signal(signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr(zygote, "ANSWER_SECONDS", 0.1)
        assert await process.wait() is None  # nobody can know
    ended = await launch(tmp_path, FAMILY)
    assert await ended.wait() == 2
    wait_until(lambda: not is_alive(parent))


def test_a_module_that_cannot_be_imported_is_named(launcher: Launcher, tmp_path: Path) -> None:
    broken = zygote.Zygote(multiprocessing.get_context("forkserver"), "no_such_module", print)
    for _ in range(2):
        with pytest.raises(OSError, match="no_such_module cannot be imported: ModuleNotFound"):
            broken.fork(tmp_path)


def test_an_agent_that_ends_waits_for_nothing_that_is_loaded(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is begun any more."""
    begun = tmp_path / "begun"
    code = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    (tmp_path / "slow_to_import.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    slow = zygote.Zygote(multiprocessing.get_context("forkserver"), "slow_to_import", print)
    with ThreadPoolExecutor(max_workers=1) as executor:
        waiting = executor.submit(slow.fork, tmp_path)
        wait_until(begun.exists)
        ended = time.monotonic()
        slow.close()
        with pytest.raises(OSError, match="is lost"):
            waiting.result(60.0)
        assert time.monotonic() < ended + 60.0  # sooner than loading is given up
    with pytest.raises(OSError, match="about to end"):
        slow.fork(tmp_path)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_engines_outlive_their_agent_and_what_they_were_forked_from_does_not(
    folder: Path, is_stopped: bool
) -> None:
    """Linux hangs up on a stopped process that is left behind in its session."""
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT, str(folder), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    engine = None
    try:
        assert agent.stdout is not None
        with agent.stdout:
            engine = psutil.Process(int(agent.stdout.readline()))
        parent = engine.parent()
        assert parent is not None
        wait_until(lambda: str(folder) in " ".join(engine.cmdline()))
        if is_stopped:
            engine.suspend()
        agent.kill()
        agent.wait()
        wait_until(lambda: not is_alive(parent))
        time.sleep(0.5)
        assert is_alive(engine)
    finally:
        agent.kill()
        agent.wait()
        if engine is not None:
            engine.kill()


def test_too_few_descriptors_are_found_before_a_process_is_begun(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was begun stays open, and the fork server ends."""
    own, taken = os.open, itertools.count()

    def limited(path: str, *arguments: Any) -> int:
        if path == os.devnull and next(taken) == 5:
            raise OSError(errno.EMFILE, "Too many open files")
        return own(path, *arguments)

    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", limited)
        patch.setattr(launcher._context, "Process", lambda **_: SimpleNamespace())
        with pytest.raises(OSError, match="Too many open files"):
            launcher._fork_from_server(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
