"""One engine as its agent sees it: its folder, its process, and the link to it.

The link is a Unix socket that the engine binds. It is opened again whenever it breaks, until the
process ends; directives wait in a queue meanwhile, and are few.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from planaria.api.worker.v1.directive_pb2 import Directive
from planaria.api.worker.v1.engine_link_pb2 import EngineCommand, EngineEvent, Lease
from planaria.api.worker.v1.report_pb2 import EngineSnapshot, EngineState
from planaria_common.logging import get_logger
from planaria_worker.agent.concurrency import until_first_ends
from planaria_worker.agent.engine_process import LOG_FILE, SOCKET_FILE, EngineProcess
from planaria_worker.agent.log_tail import LogTail
from planaria_worker.engine_config import EngineConfig
from planaria_worker.link import read_message, socket_address, write_message

CONNECT_PAUSE_SECONDS = 0.05
WATCH_PAUSE_SECONDS = 0.5

log = get_logger("engine")


class EngineHandle:
    """Connects to an engine, keeps its last snapshot, and passes on what it says."""

    def __init__(
        self,
        *,
        folder: Path,
        config: EngineConfig,
        process: EngineProcess,
        on_event: Callable[["EngineHandle", EngineEvent], None],
    ) -> None:
        self.folder = folder
        self.config = config
        self.process = process
        self.tail = LogTail(folder / LOG_FILE)
        self.snapshot = EngineSnapshot(
            engine_id=config.engine_id,
            job_id=config.job_id,
            accelerator=config.accelerator,
            generation=config.generation,
            state=EngineState.ENGINE_STATE_STARTING,
            pid=process.pid,
        )
        self._on_event = on_event
        self._num_silent_looks = 0
        self._newest_report = 0
        self._commands: asyncio.Queue[EngineCommand] = asyncio.Queue()
        self._unsent: EngineCommand | None = None

    @property
    def engine_id(self) -> str:
        return self.config.engine_id

    def send(self, directive: Directive) -> None:
        self._commands.put_nowait(EngineCommand(directive=directive))

    def renew_lease(self, seconds: float) -> None:
        """Let the engine go on for this long; not queued, since only the newest one matters."""
        if self._commands.empty():
            lease = Lease()
            lease.duration.FromNanoseconds(round(seconds * 1e9))
            self._commands.put_nowait(EngineCommand(lease=lease))

    def reports_stored(self, report_number: int) -> None:
        """Let the engine forget its reports up to this one."""
        self._commands.put_nowait(EngineCommand(reports_stored=report_number))

    def count_silence(self) -> int:
        """Return how often this was called since the engine last said something.

        Looks are counted, not seconds: an agent that was stopped for a while has heard nothing.
        """
        self._num_silent_looks += 1
        return self._num_silent_looks

    async def run(self) -> int | None:
        """Hold the link until the process has ended; returns its exit code, if known."""
        link = asyncio.create_task(self._hold_link())
        try:
            return await self._wait()
        finally:
            link.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await link

    async def _wait(self) -> int | None:
        while True:
            try:
                return await self.process.wait()
            except OSError as error:  # no descriptor to watch it with: nobody else would
                log.warning("engine_not_watched", engine_id=self.engine_id, cause=str(error))
            await asyncio.sleep(WATCH_PAUSE_SECONDS)

    async def _hold_link(self) -> None:
        while True:
            try:
                await self._use_link()
            except OSError as error:
                log.debug("engine_link_lost", engine_id=self.engine_id, cause=str(error))
            except Exception:  # an engine without a link would be taken for one that hangs
                log.exception("engine_link_failed", engine_id=self.engine_id)
            await asyncio.sleep(CONNECT_PAUSE_SECONDS)

    async def _use_link(self) -> None:
        with socket_address(self.folder / SOCKET_FILE) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        try:
            await until_first_ends(self._read(reader), self._write(writer))
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (event := await read_message(reader, EngineEvent)) is not None:
            self._num_silent_looks = 0
            if event.HasField("snapshot"):
                self.snapshot = event.snapshot
            elif self._is_new(event):
                self._on_event(self, event)
        raise ConnectionError("the engine closed the link")

    def _is_new(self, event: EngineEvent) -> bool:
        """Whether it is no report that came before the link broke, and comes again."""
        is_new = event.report_number == 0 or event.report_number > self._newest_report
        self._newest_report = max(self._newest_report, event.report_number)
        return is_new

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while True:
            # A command that a broken link may have swallowed is sent again: engines know its id.
            self._unsent = self._unsent or await self._commands.get()
            await write_message(writer, self._unsent)
            self._unsent = None
