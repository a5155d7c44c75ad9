"""Tensors over a connection: chunks, then the SHA-256 of all bytes.

chunk:       length, bytes; in the order of the header's tensors, never across two
end:         length 0, SHA-256
revoked:     length 2^32-1 in place of a chunk: the data sent so far are invalid
inserted:    length 2^32-2 in place of a chunk: a whole message of another kind, then more chunks
"""

import hashlib
import hmac
import socket
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from planaria_worker.engine.layers.copy import wire

_REVOKED = 0xFFFFFFFF
_INSERTED = 0xFFFFFFFE


class RevokedError(Exception):
    """The sender changed the layer while it sent it."""


def send_tensors(
    connection: socket.socket, tensors: Iterable[Tensor], *, goes_on: Callable[[], bool]
) -> bool:
    """Send tensors while `goes_on` is true after each chunk; return whether all were sent."""
    digest = hashlib.sha256()
    for tensor in tensors:
        for chunk in wire.chunks(tensor):
            digest.update(chunk)
            connection.sendall(wire.LENGTH.pack(len(chunk)))
            connection.sendall(chunk)
            if not goes_on():
                connection.sendall(wire.LENGTH.pack(_REVOKED))
                return False
    connection.sendall(wire.LENGTH.pack(wire.NO_MORE_CHUNKS) + digest.digest())
    return True


def announce_insertion(connection: socket.socket) -> None:
    """Announce that a whole message comes before the next chunk."""
    connection.sendall(wire.LENGTH.pack(_INSERTED))


def receive_tensors(
    connection: socket.socket,
    headers: Sequence[wire.TensorHeader],
    *,
    after_chunk: Callable[[], None],
    between: Callable[[], None] | None = None,
) -> dict[str, Tensor]:
    """Receive on the CPU what `send_tensors` sends.

    Args:
        connection: where it comes from.
        headers: of the tensors, in their order.
        after_chunk: called after each chunk.
        between: receives a message that comes between two chunks; None: there is none.

    Raises:
        RevokedError: the sender has revoked it.
        ValueError: the data differ from the headers or from what the sender sent.
        OSError: the connection ended.
    """
    digest = hashlib.sha256()
    tensors = {header.name: wire.allocate(header) for header in headers}
    for tensor in tensors.values():
        rest = wire.raw_bytes(tensor)
        while rest:
            length = _receive_length(connection, between)
            if not 0 < length <= len(rest):
                raise ValueError(f"a chunk of {length} bytes where {len(rest)} are missing")
            wire.receive_into(connection, rest[:length])
            digest.update(rest[:length])
            rest = rest[length:]
            after_chunk()
    if _receive_length(connection, between) != wire.NO_MORE_CHUNKS:
        raise ValueError("more bytes than the header announced")
    if not hmac.compare_digest(
        wire.receive_exactly(connection, wire.DIGEST_BYTES), digest.digest()
    ):
        raise ValueError("the SHA-256 of what arrived differs from the sender's")
    return tensors


def _receive_length(connection: socket.socket, between: Callable[[], None] | None) -> int:
    while True:
        length = wire.receive_length(connection, _REVOKED)
        if length == _REVOKED:
            raise RevokedError("changed it while it was copied")
        if length != _INSERTED or between is None:
            return length
        between()
