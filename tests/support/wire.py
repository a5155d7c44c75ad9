"""A connection to a server that can be cut, and led to another one."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any


class Wire:
    """Forwards TCP to a server, in a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._carries = asyncio.Event()
        self._carries.set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server: asyncio.Server = self._call(
            asyncio.start_server(self._forward, "127.0.0.1", 0)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._call(self._cut())

    def fall_silent(self) -> None:
        """Keep all connections, but carry nothing more until they are cut."""
        self._loop.call_soon_threadsafe(self._carries.clear)

    def mend(self) -> None:
        """Let new connections through again."""
        self._is_cut = False

    def lead_to(self, port: int) -> None:
        """End all connections; new ones go to another port."""
        self.cut()
        self._target = (self._target[0], port)
        self.mend()

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[object, object, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _cut(self) -> None:
        self._is_cut = True
        self._carries.set()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _end(self) -> None:
        """Cut, and wait until nothing is left that the loop would have to close."""
        for socket in self._server.sockets:
            # Closed at once, the server would lose a connection that it has just taken.
            self._loop.remove_reader(socket.fileno())
        await self._cut()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others, return_exceptions=True)
        self._server.close()
        await asyncio.sleep(0)  # connections end in the next turn of the loop

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._kept(writer):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            async with self._kept(far_writer):
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    @contextlib.asynccontextmanager
    async def _kept(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """Let a connection be cut, and end it at the latest with this block."""
        self._writers.add(writer)
        try:
            if self._is_cut:
                writer.transport.abort()
            with contextlib.suppress(OSError):
                yield
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        finally:
            self._writers.discard(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._carries.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
