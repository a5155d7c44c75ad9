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

TITLE = "planaria-worker: engines are forked from this process"
LOAD_SECONDS = 100.0
"""Somebody may wait for an engine: the coordinator asks for another after 120."""
ANSWER_SECONDS = 5.0
"""A zygote that has loaded its module and takes longer than this is stuck."""

Become = Callable[[Path], None]
"""What a forked process does: it is the engine of a folder."""

Answer = int | OSError | None


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
        self._is_loaded = False
        self._is_closed = False

    @property
    def is_loaded(self) -> bool:
        """Whether an engine can be forked from it at once, as far as is known."""
        process = self._process
        return self._is_loaded and process is not None and process.is_alive()

    def load(self) -> None:
        """Start the process, unless there is one, and wait until it has loaded its module.

        Raises:
            OSError: it cannot be started, or has ended, or its module cannot be imported.
        """
        with self._lock:
            self._load()

    def fork(self, folder: Path) -> int:
        """Start the engine of a folder; its pid.

        Raises:
            OSError: there cannot be another process, or the zygote is lost and cannot be replaced.
        """
        with self._lock:
            self._load()
            pid = self._ask(folder, ANSWER_SECONDS)
        if pid is None:
            raise OSError(f"no engine could be forked in {folder}")
        return pid

    def exit_code(self, pid: int) -> int | None:
        """How an engine that was forked has ended; None: nobody knows."""
        if not self._lock.acquire(timeout=ANSWER_SECONDS):
            return None
        try:
            with contextlib.suppress(OSError):
                return self._ask(pid, ANSWER_SECONDS)
        finally:
            self._lock.release()
        return None

    def close(self) -> None:
        """End the process, also one that others wait for; engines go on."""
        self._is_closed = True
        self._kill()

    def _load(self) -> None:
        with contextlib.suppress(OSError):
            if self._is_loaded:
                self._ask(None, ANSWER_SECONDS)
                return
        if self._is_closed:
            raise OSError("the agent is about to end")
        self._requests, theirs = multiprocessing.Pipe()
        self._process = self._context.Process(
            target=_serve,
            args=(theirs, self._module, self._become),
            name="zygote",
            daemon=True,  # ended with the agent, not waited for
        )
        with theirs:
            try:
                self._process.start()
            except EOFError:
                raise OSError("the fork server has ended") from None
        if self._is_closed:
            self._kill()
        self._ask(None, LOAD_SECONDS)
        self._is_loaded = True

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.is_alive():  # otherwise its pid may be another's
            process.kill()

    def _ask(self, request: Path | int | None, timeout_seconds: float) -> int | None:
        """Ask, and give up a zygote that does not answer: what it says later would be mistaken."""
        try:
            self._requests.send(request)
            if not self._requests.poll(timeout_seconds):
                raise TimeoutError
            answer: Answer = self._requests.recv()
        except (OSError, EOFError):
            self._is_loaded = False
            self._requests.close()
            self._kill()
            raise OSError("the process that engines are forked from is lost") from None
        if isinstance(answer, OSError):
            raise answer
        return answer


def _serve(requests: Connection, module: str, become: Become) -> None:
    """Answer the agent until it ends: None once loaded, folders by pids, pids by exit codes."""
    setproctitle.setproctitle(TITLE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the agent, whose end is the zygote's
    with contextlib.suppress(OSError, EOFError):
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a library raises
            requests.recv()
            requests.send(OSError(f"{module} cannot be imported: {type(error).__name__}: {error}"))
            os._exit(1)
        gc.freeze()  # modules are never garbage: collections of engines need not go through them
        multiprocessing.current_process().daemon = False  # which may have no children
        engines: dict[int, BaseProcess] = {}
        while True:
            match requests.recv():
                case Path() as folder:
                    requests.send(_fork(requests, become, folder, engines))
                case int() as pid:
                    ended = engines.pop(pid, None)
                    requests.send(None if ended is None else ended.exitcode)
                case _:
                    requests.send(None)
    os._exit(0)  # without waiting for the engines: they outlive their agent


def _fork(
    requests: Connection, become: Become, folder: Path, engines: dict[int, BaseProcess]
) -> Answer:
    context = multiprocessing.get_context("fork")
    engine = context.Process(target=_leave, args=(requests, become, folder), name=folder.name)
    try:
        engine.start()
    except OSError as error:  # too many processes, no memory
        return error
    if engine.pid is not None:
        engines[engine.pid] = engine
    return engine.pid


def _leave(requests: Connection, become: Become, folder: Path) -> None:
    """In the fork: let go of what is the zygote's, and be an engine like any other."""
    requests.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method("forkserver", force=True)
    become(folder)
