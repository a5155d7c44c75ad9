"""Failpoints fail where they are told to, once, and nowhere else."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from planaria_common.errors import InvalidArgumentError
from planaria_worker.engine.failpoint_script import mark
from planaria_worker.engine.failpoints import (
    ENVIRONMENT_VARIABLE,
    FailpointError,
    Failpoints,
)


def failpoints(*entries: object) -> Failpoints:
    return Failpoints.from_environment({ENVIRONMENT_VARIABLE: json.dumps(entries)})


@pytest.mark.parametrize("environment", [{}, {ENVIRONMENT_VARIABLE: ""}])
def test_unset_nothing_fails(environment: dict[str, str]) -> None:
    Failpoints.from_environment(environment).hit("forward", step=0, microbatch=0)


def test_a_failpoint_fires_once_at_its_place_step_and_microbatch() -> None:
    points = failpoints({"at": "forward", "action": "raise", "step": 3, "microbatch": 1})

    points.hit("forward", step=2, microbatch=1)
    points.hit("forward", step=3, microbatch=0)
    points.hit("backward", step=3, microbatch=1)
    points.hit("forward", step=3)
    with pytest.raises(FailpointError, match="failpoint at forward"):
        points.hit("forward", step=3, microbatch=1)
    points.hit("forward", step=3, microbatch=1)


def test_a_failpoint_may_skip_the_first_passes() -> None:
    points = failpoints({"at": "forward", "action": "raise", "microbatch": 1, "skip": 2})

    points.hit("forward", step=0, microbatch=1)
    points.hit("forward", step=0, microbatch=0)
    points.hit("forward", step=1, microbatch=1)
    with pytest.raises(FailpointError):
        points.hit("forward", step=1, microbatch=1)
    points.hit("forward", step=1, microbatch=1)


def test_one_thread_is_held_until_a_file_is_there(tmp_path: Path) -> None:
    points = failpoints({"at": "reduce", "action": "hold", "until": str(tmp_path / "go")})
    held = threading.Thread(target=points.hit, args=("reduce",), daemon=True)
    held.start()
    while points._armed:  # until it is in the hold
        held.join(0.001)
    assert held.is_alive()
    points.hit("reduce")
    (tmp_path / "go").touch()
    held.join(60)
    assert not held.is_alive()


def test_without_step_it_fails_at_the_first_hit() -> None:
    points = failpoints({"at": "rebuild", "action": "raise"}, {"at": "copy", "action": "raise"})

    with pytest.raises(FailpointError):
        points.hit("copy", step=17)
    with pytest.raises(FailpointError):
        points.hit("rebuild")
    points.hit("rebuild")


def test_one_of_many_threads_fails() -> None:
    points = failpoints({"at": "serve_copy", "action": "raise"})
    num_failures = 0
    barrier = threading.Barrier(8)

    def hit() -> None:
        nonlocal num_failures
        barrier.wait()
        try:
            points.hit("serve_copy", step=1)
        except FailpointError:
            num_failures += 1

    threads = [threading.Thread(target=hit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_failures == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", ": not JSON"),
        ("{}", ": must be a JSON list"),
        ("[1]", "[0]: must be an object"),
        ('[{"action": "kill"}]', "[0].at: None is not one of prepare, forward,"),
        ('[{"at": "forward", "action": "die"}]', "[0].action: 'die' is not one of kill, stop,"),
        ('[{"at": "forward", "action": "kill", "stp": 1}]', "[0].stp: unknown field; known are"),
        ('[{"at": "forward", "action": "kill", "step": -1}]', "[0].step: -1 is not a whole number"),
        ('[{"at": "forward", "action": "kill", "step": true}]', "[0].step: True is not a whole"),
        ('[{"at": ["x"], "action": "kill"}]', "[0].at: ['x'] is not one of"),
    ],
)
def test_bad_values_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Failpoints.from_environment({ENVIRONMENT_VARIABLE: text})
    assert caught.value.message.startswith(f"{ENVIRONMENT_VARIABLE}{message}")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script"
    path.touch()
    return path


def of_script(script: Path, engine_id: str) -> Failpoints:
    return Failpoints.from_environment({ENVIRONMENT_VARIABLE: str(script)}, engine_id)


def add(script: Path, **line: object) -> None:
    with script.open("a") as file:
        file.write(json.dumps({"action": "raise", **line}) + "\n")


def test_a_script_may_grow(script: Path) -> None:
    points = of_script(script, "job/node-0/0/1")
    points.hit("forward", step=1, microbatch=0)
    add(script, at="forward", engine="*/node-1/*")
    add(script, at="forward", engine="*/node-0/*", since_step=2)
    points.hit("forward", step=1, microbatch=0)
    with pytest.raises(FailpointError):
        points.hit("forward", step=3, microbatch=0)
    points.hit("forward", step=3, microbatch=0)


def test_a_line_that_is_still_being_written_waits(script: Path) -> None:
    points = of_script(script, "job/node-0/0/1")
    script.write_text('{"at": "forward", "act')
    points.hit("forward")
    script.write_text('{"at": "forward", "action": "raise"}\n')
    with pytest.raises(FailpointError):
        points.hit("forward")


def test_a_line_fires_in_one_engine_and_leaves_a_mark(script: Path) -> None:
    add(script, at="copy")
    first, second = (of_script(script, f"job/node-{index}/0/1") for index in (0, 1))
    with pytest.raises(FailpointError):
        first.hit("copy", step=4)
    second.hit("copy", step=4)
    said = json.loads(mark(script, 0).read_text())
    assert said.pop("seconds") <= time.monotonic()
    assert said == {"engine": "job/node-0/0/1", "at": "copy", "step": 4, "microbatch": None}
    assert sorted(path.name for path in script.parent.iterdir()) == ["script", "script.0"]


def test_a_line_may_wait_for_another_one(script: Path) -> None:
    add(script, at="copy")
    add(script, at="forward", after=0)
    first, second = (of_script(script, f"job/node-{index}/0/1") for index in (0, 1))
    second.hit("forward")
    with pytest.raises(FailpointError):
        first.hit("copy")
    with pytest.raises(FailpointError):
        second.hit("forward")


def test_a_link_to_a_script_is_followed_once(script: Path) -> None:
    link = script.with_name("link")
    link.symlink_to(script)
    points = of_script(link, "e")
    link.unlink()
    add(script, at="copy")
    with pytest.raises(FailpointError):
        points.hit("copy")


SCRIPT = """
import os, sys
from planaria_worker.engine.failpoint_script import mark
from planaria_worker.engine.failpoints import Failpoints
points = Failpoints.from_environment(os.environ)
print("before", flush=True)
points.hit("reduce", step=1)
print("after", flush=True)
"""


def start(action: str) -> subprocess.Popen[str]:
    entries = json.dumps([{"at": "reduce", "action": action}])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, ENVIRONMENT_VARIABLE: entries},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "before\n"
    return process


@pytest.mark.parametrize(
    ("action", "number"), [("kill", signal.SIGKILL), ("segfault", signal.SIGSEGV)]
)
def test_the_process_dies_there(action: str, number: signal.Signals) -> None:
    with start(action) as process:
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.wait() == -number


def test_the_process_stops_there_and_can_go_on() -> None:
    with start("stop") as process:
        _, state = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(state)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.read() == "after\n"


def test_the_thread_hangs_there_while_the_process_lives() -> None:
    with start("hang") as process:
        try:
            with pytest.raises(subprocess.TimeoutExpired) as caught:
                process.communicate(timeout=0.3)
            assert not caught.value.stdout
        finally:
            process.kill()
