"""Starts engines in milliseconds: one process has imported everything, engines are its forks.

Importing torch and transformers takes 4 CPU seconds, ten times as long as most tests of engines.
The end-to-end tests start engines the way an agent does.

    python -m support.engines.zygote          (requests on stdin, pids and exits on stdout, as JSON)
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.repository import ROOT

TESTS = ROOT / "tests"


class EngineProcess:
    """A forked engine, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, ended: threading.Condition) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._ended:
            if not self._ended.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired(f"engine {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, not reported yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that engines are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.engines.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
            },
        )
        self._changed = threading.Condition()
        self._engines: dict[int, EngineProcess] = {}
        self._newest: EngineProcess | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(
        self,
        config: Path,
        log: Path,
        *,
        environment: Mapping[str, str],
        without: Callable[[pytest.MonkeyPatch], None] | None,
    ) -> EngineProcess:
        request = {
            "config": str(config),
            "log": str(log),
            "environment": environment,
            "without": [without.__module__, without.__name__] if without else None,
        }
        assert self._process.stdin is not None
        with self._changed:
            self._newest = None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: self._newest is not None, 120.0)
            assert self._newest is not None
            return self._newest

    def close(self) -> None:
        """Ends the process; engines that still run are killed."""
        for engine in list(self._engines.values()):
            engine.kill()
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
                    self._newest = EngineProcess(said["started"], self._changed)
                    self._engines[said["started"]] = self._newest
                else:
                    self._engines[said["ended"]].returncode = said["code"]
                self._changed.notify_all()


def serve() -> None:
    """Forks an engine for each request; tells when it ends."""
    import planaria_worker.engine.process.assembly  # what takes so long
    import planaria_worker.models.transformer  # noqa: F401 - and longer

    gc.collect()
    gc.freeze()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        for line in sys.stdin:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become_engine(request)
            _tell(answers, {"started": pid})
            threading.Thread(target=_reap, args=(pid, answers), daemon=True).start()


def _reap(pid: int, answers: Any) -> None:
    _, code = os.waitpid(pid, 0)
    _tell(answers, {"ended": pid, "code": os.waitstatus_to_exitcode(code)})


_telling = threading.Lock()


def _tell(answers: Any, said: Mapping[str, int]) -> None:
    with _telling:
        answers.write(json.dumps(said) + "\n")
        answers.flush()


def _become_engine(request: Mapping[str, Any]) -> NoReturn:
    from planaria_worker.engine.process.main import main

    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(request["environment"])
    if request["without"]:
        module, name = request["without"]
        getattr(importlib.import_module(module), name)(pytest.MonkeyPatch())
    try:
        main(["--config", request["config"]])
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve()
