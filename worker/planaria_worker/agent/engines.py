"""The engines of a node: start, adopt, stop, and notice their end."""

import asyncio
import contextlib
import shutil
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineEvent
from planaria.local.processes import find_workers, send_signal
from planaria_common.errors import PlanariaError
from planaria_common.logging import get_logger
from planaria_worker.agent.concurrency import in_thread
from planaria_worker.agent.engine_handle import EngineHandle
from planaria_worker.agent.engine_process import (
    CONFIG_FILE,
    EngineProcess,
    Launch,
    find_engine,
)
from planaria_worker.engine_config import EngineConfig

STOP_GRACE_SECONDS = 3.0
STOP_SECONDS = 2 * STOP_GRACE_SECONDS
"""The longest that an engine is waited for that is stopped by force."""
NUM_KEPT_FOLDERS = 20

log = get_logger("engines")


class Engines:
    """Every engine process of this node, by engine id.

    Args:
        root: folder that holds one folder per engine.
        on_event: called with each event of an engine, but its snapshots.
        on_exit: called once when an engine's process has ended, with its exit code if known.
        launch: starts the engine whose configuration is in a folder; called in a thread.
    """

    def __init__(
        self,
        *,
        root: Path,
        on_event: Callable[[EngineHandle, EngineEvent], None],
        on_exit: Callable[[EngineHandle, int | None], Awaitable[None]],
        launch: Launch,
    ) -> None:
        self._root = root
        self._launch = launch
        self._on_event = on_event
        self._on_exit = on_exit
        self._handles: dict[str, EngineHandle] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        root.mkdir(parents=True, exist_ok=True)

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(list(self._handles.values()))

    def get(self, engine_id: str) -> EngineHandle | None:
        return self._handles.get(engine_id)

    def new_folder(self, engine_id: str) -> Path:
        """Make the folder of an engine; ids are paths, so their slashes become dots.

        An agent that was killed may have begun to start this engine: it is started again in another
        folder. Should there be a process that nobody has written down, or should one come yet, it
        has a socket of its own, and ends with its first lease.

        Raises:
            OSError: it cannot be made.
        """
        folder = self._root / engine_id.replace("/", ".")
        if folder.exists():
            folder = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}")
        folder.mkdir(mode=0o700)
        return folder

    async def start(self, folder: Path, config: EngineConfig) -> EngineHandle:
        """Start an engine in its new folder.

        Raises:
            OSError: its process cannot be made.
        """
        await in_thread(config.dump, folder / CONFIG_FILE)
        # Waited for when the agent ends: then it ends the process that it has begun to start.
        process = await asyncio.to_thread(self._launch, folder, config)
        log.info("engine_started", engine_id=config.engine_id, pid=process.pid)
        return self._watch(folder, config, process)

    def adopt(self) -> list[EngineHandle]:
        """Take over the live engines of an earlier agent of this node; forget old dead ones."""
        adopted: list[EngineHandle] = []
        dead: list[Path] = []
        for folder in self._root.iterdir():
            process = find_engine(folder)
            if process is None:
                dead.append(folder)
                continue
            try:
                config = EngineConfig.load(folder / CONFIG_FILE)
            except PlanariaError as error:
                log.warning("engine_not_adopted", folder=folder.name, cause=str(error))
                process.signal(signal.SIGKILL)
                continue
            log.info("engine_adopted", engine_id=config.engine_id, pid=process.pid)
            adopted.append(self._watch(folder, config, process))
        self._end_strays()
        dead.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in dead[NUM_KEPT_FOLDERS:]:
            shutil.rmtree(folder, ignore_errors=True)
        return adopted

    def _end_strays(self) -> None:
        """Kill engines of earlier agents that are not known to be one: they keep an accelerator."""
        known = {handle.process.identity for handle in self}
        for stray in find_workers(str(self._root)):
            if stray not in known:
                log.warning("engine_not_adopted", pid=stray.pid, cause="nothing says what it is")
                send_signal(stray, signal.SIGKILL)

    async def stop(self, handle: EngineHandle, directive: Directive | None = None) -> None:
        """End an engine's process: by its own doing if there is a directive, then by force."""
        if directive is not None:
            handle.send(directive)
            if await self._ended(handle, STOP_GRACE_SECONDS):
                return
        for number in (signal.SIGTERM, signal.SIGKILL):
            handle.process.signal(number)
            if await self._ended(handle, STOP_GRACE_SECONDS):
                return

    async def stop_all(self) -> None:
        """End every engine."""
        await asyncio.gather(*(self.stop(handle) for handle in self))

    async def close(self) -> None:
        """Let go of the engines without ending them."""
        for watch in list(self._watches.values()):
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _ended(self, handle: EngineHandle, timeout_seconds: float) -> bool:
        watch = self._watches.get(handle.engine_id)
        if watch is not None:
            await asyncio.wait([watch], timeout=timeout_seconds)
        return handle.engine_id not in self._handles

    def _watch(self, folder: Path, config: EngineConfig, process: EngineProcess) -> EngineHandle:
        handle = EngineHandle(
            folder=folder, config=config, process=process, on_event=self._on_event
        )
        self._handles[config.engine_id] = handle
        self._watches[config.engine_id] = asyncio.create_task(self._until_exit(handle))
        return handle

    async def _until_exit(self, handle: EngineHandle) -> None:
        exit_code = await handle.run()
        log.info("engine_exited", engine_id=handle.engine_id, exit_code=exit_code)
        try:
            await self._on_exit(handle, exit_code)
        finally:
            del self._handles[handle.engine_id], self._watches[handle.engine_id]
