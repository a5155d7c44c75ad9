"""Engines are forked from processes that have their libraries loaded, two of them per agent.

A fresh Python takes seconds to import torch, and seconds more to import transformers; long for an
engine that is to take the place of one that crashed. The standard library's fork server loads the
first when the agent starts. Models by import path do without transformers: on a node that has just
started their engines are not held up by it. A zygote, which is forked from the fork server, loads
it when it is needed, or when the node has had no engine for a while; from then on engines are
forked from it. Both processes are started again if they are lost. The zygote ends with its agent,
the fork server when the engines have ended, too.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import setproctitle

from planaria.job import ImportedSpec, JobSpec
from planaria_common.logging import get_logger
from planaria_common.priority import standing_back
from planaria_worker.agent.engine_process import (
    CONFIG_FILE,
    LOG_FILE,
    EngineProcess,
    record_process,
)
from planaria_worker.agent.zygote import Zygote
from planaria_worker.engine_config import EngineConfig

NUM_DESCRIPTORS = 8
"""As many as starting a process takes for a moment, and some to spare."""
EXIT_CODE_TIMEOUT_SECONDS = 5.0
IDLE_SECONDS = 5.0
"""A node that others wait for gets its first directive moments after its start."""
LOOKS = 5
"""In that time; an engine may end and another be asked for."""

# One thread each, decided before any numerical library is loaded: a reproducible job's sums depend
# on it, and ranks that share a machine would only get into each other's way.
THREAD_LIMITS = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
)

log = get_logger("launcher")


class Launcher:
    """Starts engine processes; `launch` may be called from any thread."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["planaria_worker.engine.process.preload"])
        self._families = Zygote(self._context, "planaria_worker.models.transformer", _run_engine)
        self._engines: dict[Path, EngineProcess | None] = {}
        """By folder; None: it is being launched."""
        self._is_closed = threading.Event()

    def warm_up(self) -> None:
        """Start the processes that engines are forked from; they load libraries on their own."""
        os.environ.update(THREAD_LIMITS)  # the fork server inherits the environment of its start
        forkserver.ensure_running()
        threading.Thread(target=self._load_when_idle, name="load-when-idle", daemon=True).start()

    def close(self) -> None:
        """Wait for nothing that is being loaded any more; engines go on."""
        self._is_closed.set()
        self._families.close()

    def launch(self, folder: Path, config: EngineConfig) -> EngineProcess:
        """Start the engine whose configuration is in `folder`; waits until libraries are loaded.

        Raises:
            OSError: no process could be made, or the folder cannot be written.
        """
        self._forget_ended()
        self._engines[folder] = None
        try:
            with standing_back():  # the fork server may have to be started again
                if self._families.is_loaded or not _has_imported_model(config):
                    engine = self._fork_from_families(folder)
                else:
                    engine = self._fork_from_server(folder)
            if self._is_closed.is_set():
                engine.signal(signal.SIGKILL)
                raise OSError("the agent is about to end")
        except BaseException:
            del self._engines[folder]
            raise
        self._engines[folder] = engine
        return engine

    def _load_when_idle(self) -> None:
        num_looks = 0
        while not self._is_closed.wait(IDLE_SECONDS / LOOKS):
            self._forget_ended()
            num_looks = 0 if self._engines else num_looks + 1
            if num_looks < LOOKS:
                continue
            try:
                self._families.load()
            except OSError as error:  # the next caller tries again, and gets the error
                if not self._is_closed.is_set():
                    log.warning("families_not_loaded", cause=str(error))
            return

    def _forget_ended(self) -> None:
        """Let go of what each of them holds: two descriptors, where the fork server has made it."""
        for folder, engine in list(self._engines.items()):
            if engine is not None and not engine.is_alive:
                self._engines.pop(folder, None)

    def _fork_from_families(self, folder: Path) -> EngineProcess:
        pid = self._families.fork(folder)
        return _recorded(folder, pid, lambda: self._families.exit_code(pid))

    def _fork_from_server(self, folder: Path) -> EngineProcess:
        process = self._context.Process(target=_run_engine, args=(folder,), name=folder.name)
        _require_descriptors(NUM_DESCRIPTORS)
        try:
            process.start()
        except EOFError:
            raise OSError("the fork server has ended") from None
        if process.pid is None:
            raise OSError("the fork server made no process")

        def exit_code() -> int | None:
            process.join(EXIT_CODE_TIMEOUT_SECONDS)
            return process.exitcode

        return _recorded(folder, process.pid, exit_code)


def _require_descriptors(number: int) -> None:
    """Raise OSError where so few are left that the fork server would lose those it has begun with.

    It leaves open what it made before it failed, and ends.
    """
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def _recorded(folder: Path, pid: int, exit_code: Callable[[], int | None]) -> EngineProcess:
    """Write down which process an engine is; one of which nobody would know is ended."""
    try:
        return record_process(folder, pid, exit_code)
    except OSError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # our own child's child: nobody else has its pid yet
        raise


def _has_imported_model(config: EngineConfig) -> bool:
    return isinstance(JobSpec.model_validate_json(config.job_spec).model, ImportedSpec)


def _run_engine(folder: Path) -> None:
    """Be the engine of a folder: what a shell would do, and then the engine's main."""
    os.setpgid(0, 0)  # no session: Linux may divide the processor among sessions first
    # Who is stopped when its agent ends would be hung up on, being left behind in the session.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing to tidy up
    os.chdir(folder)
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.close(log)
    config = str(folder / CONFIG_FILE)
    setproctitle.setproctitle(f"python -m planaria_worker.engine --config {config}")
    from planaria_worker.engine.process.main import main  # the agent itself does without torch

    main(["--config", config])
