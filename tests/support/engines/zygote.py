"""Starts engines and services in milliseconds: one process has imported everything, and forks.

Importing torch and transformers takes 4 CPU seconds, ten times as long as most tests of engines; a
node imports them in a fork server of its own, and the coordinator's libraries take 2.

    python -m support.engines.zygote          (requests on stdin, pids and exits on stdout, as JSON)
"""

import contextlib
import gc
import importlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest
import setproctitle

from benchmarks.common.processes import Process, start_process
from planaria_worker.agent.launcher import THREAD_LIMITS
from support.repository import ROOT

TESTS = ROOT / "tests"


class ForkedProcess:
    """An engine or a service, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, ended: threading.Condition) -> None:
        self.pid = pid
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._ended:
            if not self._ended.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int, /) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, not reported yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that engines and services are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.engines.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
                **THREAD_LIMITS,
            },
        )
        self._changed = threading.Condition()
        self._processes: dict[int, ForkedProcess] = {}
        self._newest: ForkedProcess | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start_engine(
        self,
        config: Path,
        log: Path,
        *,
        environment: Mapping[str, str],
        without: Callable[[pytest.MonkeyPatch], None] | None,
    ) -> ForkedProcess:
        return self._start(
            config=str(config),
            log=str(log),
            environment=environment,
            without=[without.__module__, without.__name__] if without else None,
        )

    def start_service(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Do as `start_process` does, which starts what has a prefix."""
        if prefix:
            return start_process(module, arguments, environment=environment, log=log, prefix=prefix)
        reader, writer = os.pipe()
        process = self._start(
            service=module,
            arguments=list(arguments),
            environment={**os.environ, **environment},
            log=str(log),
            stdout=f"/proc/{os.getpid()}/fd/{writer}",
        )
        os.close(writer)
        process.stdout = os.fdopen(reader)
        return process

    def _start(self, **request: Any) -> ForkedProcess:
        assert self._process.stdin is not None
        with self._changed:
            self._newest = None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: self._newest is not None, 120.0)
            assert self._newest is not None
            return self._newest

    def close(self) -> None:
        """Ends the process; what still runs of those it forked is killed."""
        for process in list(self._processes.values()):
            process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                if "started" in said:
                    self._newest = ForkedProcess(said["started"], self._changed)
                    self._processes[said["started"]] = self._newest
                else:
                    self._processes[said["ended"]].returncode = said["code"]
                self._changed.notify_all()


def serve() -> Mapping[str, Any] | None:
    """Fork for each request, and tell when the forks end; returns the request in a fork."""
    import planaria_worker.engine.process.assembly  # what takes so long
    import planaria_worker.models.transformer  # noqa: F401 - and longer

    setproctitle.getproctitle()  # looks for its place in memory before the environment moves
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        for module in _MODULES.get(request.get("service", ""), ()):
            importlib.import_module(module)
        gc.collect()
        gc.freeze()
        stdout = os.open(request.get("stdout", os.devnull), os.O_WRONLY)
        pid = os.fork()
        if pid == 0:
            _redirect(stdout, request)
            return request
        os.close(stdout)
        _tell({"started": pid})
        threading.Thread(target=_reap, args=(pid,), daemon=True).start()
    return None


_MODULES = {
    "planaria_planner": ("planaria_planner.__main__",),
    "planaria_coordinator": ("planaria_coordinator.__main__",),
    "planaria_worker": (
        "planaria_worker.__main__",
        "planaria_worker.agent.life",
        "planaria_worker.engine.process.preload",
    ),
}


def _reap(pid: int) -> None:
    _, code = os.waitpid(pid, 0)
    _tell({"ended": pid, "code": os.waitstatus_to_exitcode(code)})


def _tell(said: Mapping[str, int]) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")  # a short line is written as one


def _redirect(stdout: int, request: Mapping[str, Any]) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stdout if "stdout" in request else log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _be_engine(request: Mapping[str, Any]) -> None:
    from planaria_worker.engine.process.main import main

    os.environ.update(request["environment"])
    if request["without"]:
        module, name = request["without"]
        getattr(importlib.import_module(module), name)(pytest.MonkeyPatch())
    try:
        main(["--config", request["config"]])
    finally:
        os._exit(1)


def _be_service(request: Mapping[str, Any]) -> None:
    """Do what `python -m <service> <arguments>` does."""
    os.setpgid(0, 0)
    ours = _python_path()
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[1:] = [*_python_path(), *(path for path in sys.path[1:] if path not in ours)]
    service = importlib.import_module(f"{request['service']}.__main__")
    sys.modules["__main__"] = service
    sys.argv = [str(service.__file__), *request["arguments"]]
    setproctitle.setproctitle(" ".join(["python -m", request["service"], *request["arguments"]]))
    if request["service"] == "planaria_worker":
        _fork_the_fork_server()
    sys.exit(service.main())


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _fork_the_fork_server() -> None:
    """Start what a node forks engines from, which would import what is imported here."""
    os.environ.update(THREAD_LIMITS)
    resource_tracker.ensure_running()
    multiprocessing.set_forkserver_preload([])
    with mock.patch.object(util, "spawnv_passfds", _fork_instead):
        forkserver.ensure_running()


_spawn = util.spawnv_passfds


def _fork_instead(_executable: str, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Do what a Python process with `-c` and these descriptors would."""
    pid = os.fork()
    if pid:
        return pid
    try:
        kept = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
        for low, high in itertools.pairwise(kept):
            os.closerange(low + 1, high)
        util.spawnv_passfds = _spawn
        vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))  # its lock is held
        exec(arguments[-1], {})  # noqa: S102 - the standard library's code
    finally:
        os._exit(0)


if __name__ == "__main__":
    told = serve()
    if told is not None:
        (_be_service if "service" in told else _be_engine)(told)
