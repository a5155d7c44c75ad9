"""The link between an agent and its engine: length-prefixed messages over a Unix socket.

Each message is its length as a big-endian uint32, then its protobuf encoding. The agent reads and
writes with asyncio, the engine with blocking calls. Nothing here imports torch.
"""

import asyncio
import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

MAX_MESSAGE_BYTES = 64 << 20
"""A longer one means that the two ends do not speak this protocol."""

_LENGTH = struct.Struct(">I")

MessageT = TypeVar("MessageT", bound=Message)


class LinkError(ConnectionError):
    """The other end does not speak this protocol, or went away in the middle of a message."""


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Give a name for a socket's path that fits the kernel's limit of 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def encode(message: Message) -> bytes:
    """Return the message as it is sent."""
    body = message.SerializeToString()
    if len(body) > MAX_MESSAGE_BYTES:
        raise LinkError(f"a message of {len(body)} bytes is over {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


class Decoder(Generic[MessageT]):
    """Split a stream into messages, however its bytes arrive."""

    def __init__(self, message_type: type[MessageT]) -> None:
        self._message_type = message_type
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[MessageT]:
        """Yield the messages that are complete with these bytes.

        Raises:
            LinkError: what came is not a message.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _decode_length(self._buffer[: _LENGTH.size])
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _decode(body, self._message_type)


async def read_message(
    reader: asyncio.StreamReader, message_type: type[MessageT]
) -> MessageT | None:
    """Wait for one message; return None if the other end closed the connection between two.

    Raises:
        LinkError: the connection ended within a message, or what came is not one.
        OSError: the connection is closed.
    """
    try:
        length = _decode_length(await reader.readexactly(_LENGTH.size))
        return _decode(await reader.readexactly(length), message_type)
    except asyncio.IncompleteReadError as error:
        if error.partial or error.expected != _LENGTH.size:
            raise LinkError("the connection ended within a message") from None
        return None


async def write_message(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send one message and wait until the buffer has room for the next.

    Raises:
        OSError: the connection is closed.
    """
    writer.write(encode(message))
    await writer.drain()


def _decode_length(header: bytes | bytearray) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > MAX_MESSAGE_BYTES:
        raise LinkError(f"a message of {length} bytes is over {MAX_MESSAGE_BYTES}")
    return int(length)


def _decode(body: bytes, message_type: type[MessageT]) -> MessageT:
    message = message_type()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise LinkError(f"not a {message_type.DESCRIPTOR.name}: {error}") from None
    return message
