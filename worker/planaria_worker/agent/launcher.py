"""Engines are forked from a process that has torch loaded already, one such process per agent.

A fresh Python takes seconds to import torch and transformers; long for an engine that is to
take the place of one that crashed. The standard library's fork server loads them once, when the
agent starts, and restarts by itself if it is lost. It ends with its agent; the engines do not.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path

import setproctitle

from planaria_worker.agent.engine_process import (
    CONFIG_FILE,
    LOG_FILE,
    EngineProcess,
    record_process,
)

EXIT_CODE_TIMEOUT_SECONDS = 5.0

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


class Launcher:
    """Starts engine processes; `launch` may be called from any thread."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["planaria_worker.engine.preload"])

    def warm_up(self) -> None:
        """Start the process that engines are forked from; it loads libraries on its own."""
        os.environ.update(_THREAD_LIMITS)  # the fork server inherits the environment of its start
        forkserver.ensure_running()

    def launch(self, folder: Path) -> EngineProcess:
        """Start the engine whose configuration is in `folder`; waits until libraries are loaded.

        Raises:
            OSError: no process could be made, or the folder cannot be written.
        """
        process = self._context.Process(target=_run_engine, args=(folder,), name=folder.name)
        process.start()
        if process.pid is None:
            raise OSError("the fork server made no process")

        def exit_code() -> int | None:
            process.join(EXIT_CODE_TIMEOUT_SECONDS)
            return process.exitcode

        return record_process(folder, process.pid, exit_code)


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
