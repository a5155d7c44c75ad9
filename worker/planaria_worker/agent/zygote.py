"""A process that loads a module once, and forks itself for each engine that needs the module.

It is forked from the standard library's fork server and shares its memory; that one cannot be asked
to load anything more, and there is one of it per process. Zygote is the name that Android and
Chromium have for such a process.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import setproctitle

EXIT_CODE_TIMEOUT_SECONDS = 5.0
TITLE = "planaria-worker: engines are forked from this process"

Become = Callable[[Path], None]
"""What a forked process does: it is the engine of a folder."""


class Zygote:
    """The agent's end of it; methods may be called from any thread.

    Args:
        context: of the fork server that it is forked from.
        module: what it loads.
        become: what its forks do.
    """

    def __init__(self, context: ForkServerContext, module: str, become: Become) -> None:
        self._context = context
        self._module = module
        self._become = become
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._requests: Connection
        self._is_loaded = threading.Event()

    @property
    def is_loaded(self) -> bool:
        """Whether an engine can be forked from it at once."""
        return self._is_loaded.is_set()

    def load(self) -> None:
        """Start the process, unless it lives, and wait until it has loaded its module.

        Raises:
            OSError: it cannot be started, or ended.
        """
        with self._lock:
            self._load()

    def fork(self, folder: Path) -> int:
        """Start the engine of a folder; its pid.

        Raises:
            OSError: there cannot be another process, or the zygote ended.
        """
        with self._lock:
            self._load()
            pid = self._ask(folder)
        if pid is None:
            raise OSError(f"no engine could be forked in {folder}")
        return pid

    def exit_code(self, pid: int) -> int | None:
        """Wait a moment for the end of an engine that was forked; None: nobody knows how it was."""
        with self._lock, contextlib.suppress(OSError):
            return self._ask(pid)
        return None

    def _load(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._is_loaded.clear()
        self._requests, theirs = multiprocessing.Pipe()
        self._process = self._context.Process(
            target=_serve,
            args=(theirs, self._module, self._become),
            name="zygote",
            daemon=True,  # ended with the agent, not waited for
        )
        with theirs:
            self._process.start()
        self._ask(None)
        self._is_loaded.set()

    def _ask(self, request: Path | int | None) -> int | None:
        try:
            self._requests.send(request)
            answer: int | OSError | None = self._requests.recv()
        except (OSError, EOFError):
            raise OSError("the process that engines are forked from has ended") from None
        if isinstance(answer, OSError):
            raise answer
        return answer


def _serve(requests: Connection, module: str, become: Become) -> None:
    """Answer the agent until it ends: None once loaded, folders by pids, pids by exit codes."""
    setproctitle.setproctitle(TITLE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the agent, whose end is the zygote's
    importlib.import_module(module)
    gc.freeze()  # modules are never garbage: collections of engines need not go through them
    multiprocessing.current_process().daemon = False  # which may have no children
    context = multiprocessing.get_context("fork")
    engines: dict[int, BaseProcess] = {}
    with contextlib.suppress(OSError, EOFError):
        while True:
            match requests.recv():
                case Path() as folder:
                    engine = context.Process(
                        target=_leave, args=(requests, become, folder), name=folder.name
                    )
                    try:
                        engine.start()
                    except OSError as error:  # too many processes, no memory
                        requests.send(error)
                        continue
                    assert engine.pid is not None  # noqa: S101 - it was started
                    engines[engine.pid] = engine
                    requests.send(engine.pid)
                case int() as pid:
                    ended = engines.pop(pid, None)
                    if ended is not None:
                        ended.join(EXIT_CODE_TIMEOUT_SECONDS)
                    requests.send(None if ended is None else ended.exitcode)
                case _:
                    requests.send(None)
    os._exit(0)  # without waiting for the engines: they outlive their agent


def _leave(requests: Connection, become: Become, folder: Path) -> None:
    """In the fork: let go of what is the zygote's, and be an engine."""
    requests.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    become(folder)
