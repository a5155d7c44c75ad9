"""Stopping processes: all of them, only them, and not whoever got their pid."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planaria.local.processes import (
    ProcessIdentity,
    find_workers,
    identify,
    is_alive,
    start_module,
    stop,
)

Spawn = Callable[..., subprocess.Popen[str]]

SLEEPS = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "print('up', flush=True); signal.pause()"
)
STUBBORN = SLEEPS.replace("SIG_DFL", "SIG_IGN")


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start Python code; return once it says that it runs."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def identity(process: subprocess.Popen[str]) -> ProcessIdentity:
    found = identify(process.pid)
    assert found is not None
    return found


def test_a_process_is_stopped_by_sigint(spawn: Spawn) -> None:
    process = spawn(SLEEPS)
    assert stop([identity(process)], grace_seconds=30) == 1
    assert process.wait() == -signal.SIGINT


def test_one_that_ignores_sigint_is_killed(spawn: Spawn) -> None:
    process = spawn(STUBBORN)
    assert stop([identity(process)], grace_seconds=0.2) == 1
    assert process.wait() == -signal.SIGKILL


def test_a_process_that_reuses_the_pid_is_not_killed(spawn: Spawn) -> None:
    process = spawn(SLEEPS)
    earlier = ProcessIdentity(pid=process.pid, start_ticks=identity(process).start_ticks - 1)
    assert not is_alive(earlier)
    assert stop([earlier], grace_seconds=30) == 0
    assert process.poll() is None


def test_a_dead_child_is_not_alive(spawn: Spawn) -> None:
    """It stays in the process table until its parent asks for its status."""
    process = spawn("print('up', flush=True)")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    found = identity(process)
    assert not is_alive(found)
    assert stop([found], grace_seconds=30) == 0


def test_a_name_with_parentheses_and_spaces_is_no_problem(spawn: Spawn) -> None:
    name = ") S 1 2 3 ("
    process = spawn(f"open('/proc/self/comm', 'w').write({name!r}); {SLEEPS}")
    assert identity(process) == identity(process)
    assert identity(process).start_ticks > 0


def test_agents_and_engines_are_found_by_a_path_below_a_folder(
    spawn: Spawn, tmp_path: Path
) -> None:
    engine = spawn(SLEEPS, "planaria_worker.engine", f"{tmp_path}/a/config.json")
    agent = spawn(SLEEPS, "/venv/bin/planaria-worker", f"{tmp_path}/b")
    spawn(SLEEPS, "planaria_worker", f"{tmp_path}-other/config.json")
    spawn(SLEEPS, "vim", f"{tmp_path}/a/config.json")
    assert set(find_workers(str(tmp_path))) == {identity(engine), identity(agent)}


def test_modules_run_in_a_group_of_their_own_with_all_output_in_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "speaker.py").write_text(
        "import os, sys; print('out', os.getpgid(0) == os.getpid(), *sys.argv[1:], flush=True);"
        "print('err', os.environ['WORD'], file=sys.stderr)"
    )
    log = tmp_path / "logs" / "speaker.log"
    process = start_module(
        "speaker",
        ["--x", "1"],
        log_file=log,
        environment={"PYTHONPATH": str(folder), "WORD": "hello"},
    )
    assert os.waitpid(process.pid, 0) == (process.pid, 0)
    assert log.read_text() == "out True --x 1\nerr hello\n"


def test_modules_outlive_the_terminal_that_they_were_started_in(tmp_path: Path) -> None:
    """They are in its session, for the scheduler's sake, but never in its foreground."""
    (tmp_path / "sleeper.py").write_text("import signal; signal.pause()")
    code = f"""
import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started by
from pathlib import Path
from planaria.local.processes import start_module
log, path = Path({str(tmp_path / "log")!r}), {{"PYTHONPATH": {str(tmp_path)!r}}}
started = start_module("sleeper", [], log_file=log, environment=path)
print(started.pid, started.start_ticks, flush=True)
signal.pause()
"""
    shell, terminal = pty.fork()
    if shell == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])  # noqa: S606 - a shell would do more
    with os.fdopen(terminal, "rb") as output:
        pid, start_ticks = map(int, output.readline().split())
    process = ProcessIdentity(pid=pid, start_ticks=start_ticks)
    _, status = os.waitpid(shell, 0)
    assert os.WTERMSIG(status) == signal.SIGHUP
    assert is_alive(process)
    assert stop([process], grace_seconds=30) == 1
