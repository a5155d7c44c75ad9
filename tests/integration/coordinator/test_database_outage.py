"""A database that goes away and comes back: clear errors meanwhile, and nothing lost."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from integration.coordinator.process import SPEC, run

pytestmark = pytest.mark.integration


class Wire:
    """A connection to a server that can be cut: forwards TCP in a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._forward, "127.0.0.1", 0)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._call(self._cut())

    def mend(self) -> None:
        """Let new connections through again."""
        self._is_cut = False

    def close(self) -> None:
        self._call(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        self._loop.close()

    def _call(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)  # type: ignore[arg-type]

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        self._writers -= {writer, far_writer}

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@pytest.fixture
def wire(empty_postgresql_url: str) -> Iterator[Wire]:
    address = urlsplit(empty_postgresql_url)
    assert address.hostname is not None
    assert address.port is not None
    made = Wire(address.hostname, address.port)
    yield made
    made.close()


def test_the_coordinator_outlives_its_database(
    tmp_path: Path, wire: Wire, empty_postgresql_url: str, planner_address: str
) -> None:
    """While the database is away every request says so; afterwards everything is there."""
    port = urlsplit(empty_postgresql_url).port
    url = empty_postgresql_url.replace(f":{port}/", f":{wire.port}/")
    options = (f"--planner-addresses={planner_address}", f"--database-url={url}")
    with run(tmp_path, *options) as coordinator:
        client = coordinator.client
        first = client.post("/api/v1/jobs", json={"spec": SPEC, "request_id": "1"})
        assert first.status_code == 201

        wire.cut()
        refused = [
            client.get("/readyz"),
            client.get("/api/v1/jobs"),
            client.post("/api/v1/jobs", json={"spec": SPEC, "request_id": "2"}),
        ]
        health = client.get("/healthz")
        wire.mend()

        assert [part_of(response) for response in refused] == ["database"] * 3
        assert health.status_code == 200
        second = client.post("/api/v1/jobs", json={"spec": SPEC, "request_id": "2"})
        assert second.status_code == 201, second.text
        jobs = client.get("/api/v1/jobs").json()["jobs"]
        assert [job["id"] for job in jobs] == [second.json()["id"], first.json()["id"]]


def part_of(response: httpx.Response) -> str:
    assert response.status_code == 503, response.text
    assert "only-for-this-test" not in response.text
    part: str = response.json()["metadata"]["part"]
    return part
