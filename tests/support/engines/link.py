"""One end of the link between an agent and its engine, with blocking calls."""

import socket
from collections import deque
from typing import Generic, TypeVar

from google.protobuf.message import Message

from planaria_worker.link import Decoder, encode

M = TypeVar("M", bound=Message)


class LinkEnd(Generic[M]):
    """Sends messages, and receives those of one type."""

    def __init__(self, connection: socket.socket, received_type: type[M]) -> None:
        self.connection = connection
        self._decoder = Decoder(received_type)
        self._arrived: deque[M] = deque()

    def send(self, message: Message) -> None:
        self.connection.sendall(encode(message))

    def receive(self) -> M | None:
        """The next message; None once the other end has closed the connection."""
        while not self._arrived:
            data = self.connection.recv(1 << 16)
            if not data:
                return None
            self._arrived.extend(self._decoder.feed(data))
        return self._arrived.popleft()
