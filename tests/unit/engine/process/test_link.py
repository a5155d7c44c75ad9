"""Messages arrive whole and in order, or the link says that they did not."""

import asyncio
import socket
import struct
import threading
from pathlib import Path

import pytest

from planaria.api.worker.v1.engine_link_pb2 import EngineCommand, EngineEvent
from planaria_worker import link
from support.engines.link import LinkEnd


def event(progress: int) -> EngineEvent:
    result = EngineEvent()
    result.snapshot.progress = progress
    return result


async def test_messages_arrive_in_order_and_the_end_is_seen() -> None:
    reader = asyncio.StreamReader()
    for progress in range(3):
        reader.feed_data(link.encode(event(progress)))
    reader.feed_eof()
    received = [await link.read_message(reader, EngineEvent) for _ in range(4)]
    assert received == [event(0), event(1), event(2), None]


async def test_an_empty_message_is_not_the_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(link.encode(EngineCommand()))
    assert await link.read_message(reader, EngineCommand) == EngineCommand()


@pytest.mark.parametrize("sent", [b"\0", link.encode(event(7))[:-1], struct.pack(">I", 9)])
async def test_an_end_within_a_message_is_an_error(sent: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    reader.feed_eof()
    with pytest.raises(link.LinkError, match="within a message"):
        await link.read_message(reader, EngineEvent)


async def test_another_protocol_is_refused_before_its_length_is_believed() -> None:
    sent = b"GET / HTTP/1.1\r\n"
    with pytest.raises(link.LinkError, match="bytes is over"):
        list(link.Decoder(EngineEvent).feed(sent))
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    with pytest.raises(link.LinkError, match="bytes is over"):
        await link.read_message(reader, EngineEvent)


async def test_both_ends_speak_over_a_path_longer_than_the_kernel_allows(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    server = socket.socket(socket.AF_UNIX)
    with link.socket_address(folder / "engine.sock") as address:
        server.bind(address)
    server.listen()

    def echo() -> None:
        connection, _ = server.accept()
        with connection:
            end = LinkEnd(connection, EngineEvent)
            while (message := end.receive()) is not None:
                end.send(message)

    thread = threading.Thread(target=echo)
    thread.start()
    with link.socket_address(folder / "engine.sock") as address:
        reader, writer = await asyncio.open_unix_connection(address)
    await link.write_message(writer, event(5))
    assert await link.read_message(reader, EngineEvent) == event(5)
    writer.write_eof()
    assert await link.read_message(reader, EngineEvent) is None
    writer.close()
    await writer.wait_closed()
    await asyncio.to_thread(thread.join)
    server.close()


def test_a_decoder_does_not_mind_how_the_bytes_arrive() -> None:
    stream = b"".join(link.encode(event(progress)) for progress in range(3))
    for size in (1, 3, 7, len(stream)):
        decoder = link.Decoder(EngineEvent)
        received: list[EngineEvent] = []
        for start in range(0, len(stream), size):
            received += decoder.feed(stream[start : start + size])
        assert received == [event(0), event(1), event(2)]
