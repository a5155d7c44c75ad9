"""Engines are forked from processes that have their libraries loaded, two of them per agent.

A fresh Python takes seconds to import torch, and seconds more to import transformers; long for an
engine that is to take the place of one that crashed. The standard library's fork server loads the
first when the agent starts. Models by import path do without transformers: on a node that has just
started their engines are not held up by it. A zygote, which is forked from the fork server, loads
it when it is needed, or when the node has had nothing to do for a while; from then on engines are
forked from it. Both processes are started again if they are lost. They end with their agent; the
engines do not.
"""

import multiprocessing
import os
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path

import setproctitle

from planaria.job import ImportedSpec, JobSpec
from planaria_common.logging import get_logger
from planaria_worker.agent.engine_process import (
    CONFIG_FILE,
    LOG_FILE,
    EngineProcess,
    record_process,
)
from planaria_worker.agent.zygote import EXIT_CODE_TIMEOUT_SECONDS, Zygote
from planaria_worker.engine_config import EngineConfig

IDLE_SECONDS = 5.0
"""A node that others wait for is told within moments of its start what to do."""

# One thread each, decided before any numerical library is loaded: a reproducible job's sums depend
# on it, and ranks that share a machine would only get into each other's way.
_THREAD_LIMITS = dict.fromkeys(
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
        self._context.set_forkserver_preload(["planaria_worker.engine.preload"])
        self._families = Zygote(self._context, "planaria_worker.models.transformer", _run_engine)
        self._is_idle = True

    def warm_up(self) -> None:
        """Start the processes that engines are forked from; they load libraries on their own."""
        os.environ.update(_THREAD_LIMITS)  # the fork server inherits the environment of its start
        forkserver.ensure_running()
        idle = threading.Timer(IDLE_SECONDS, self._load_families)
        idle.daemon = True
        idle.start()

    def launch(self, folder: Path, config: EngineConfig) -> EngineProcess:
        """Start the engine whose configuration is in `folder`; waits until libraries are loaded.

        Raises:
            OSError: no process could be made, or the folder cannot be written.
        """
        self._is_idle = False
        if self._families.is_loaded or not _has_imported_model(config):
            pid = self._families.fork(folder)
            return record_process(folder, pid, lambda: self._families.exit_code(pid))
        return self._launch_early(folder)

    def _load_families(self) -> None:
        if not self._is_idle:
            return
        try:
            self._families.load()
        except OSError as error:  # whoever needs it next tries again, and is told
            log.warning("families_not_loaded", cause=str(error))

    def _launch_early(self, folder: Path) -> EngineProcess:
        process = self._context.Process(target=_run_engine, args=(folder,), name=folder.name)
        process.start()
        if process.pid is None:
            raise OSError("the fork server made no process")

        def exit_code() -> int | None:
            process.join(EXIT_CODE_TIMEOUT_SECONDS)
            return process.exitcode

        return record_process(folder, process.pid, exit_code)


def _has_imported_model(config: EngineConfig) -> bool:
    return isinstance(JobSpec.model_validate_json(config.job_spec).model, ImportedSpec)


def _run_engine(folder: Path) -> None:
    """Be the engine of a folder: what a shell would do, and then the engine's main."""
    os.setsid()
    os.chdir(folder)
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.close(log)
    config = str(folder / CONFIG_FILE)
    setproctitle.setproctitle(f"python -m planaria_worker.engine --config {config}")
    from planaria_worker.engine.__main__ import main  # the agent itself does without torch

    main(["--config", config])
