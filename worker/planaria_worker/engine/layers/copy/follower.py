"""Follows layers of peers: the whole layer first, then every step. One connection per source."""

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_common.logging import get_logger
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.layers.copy import wire
from planaria_worker.engine.layers.copy.chunks import receive_tensors
from planaria_worker.engine.layers.copy.connections import (
    CONNECT_TIMEOUT_SECONDS,
    STALL_TIMEOUT_SECONDS,
    Connections,
)
from planaria_worker.engine.layers.copy.feed import CommittedSum

_log = get_logger("follower")


class Receiver(Protocol):
    """Receives layers and sums; those of one layer from one thread at a time."""

    def take_layer(
        self, layer: int, version: int, tensors: Mapping[str, Tensor], record: CommitRecord | None
    ) -> None:
        """Replace a layer, with the commit that made it."""
        ...

    def take_sum(self, committed: CommittedSum) -> None:
        """Apply a step of the source; ValueError: it is not the next one of the layer."""
        ...

    def become_current(self, layers: Sequence[int]) -> None:
        """Note that these layers have caught up with their source."""
        ...

    def fail(self, error: PlanariaError) -> None:
        """Note that a layer has no source any more."""
        ...


class LayerFollower:
    """Follows the layers of one directive until it is interrupted."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        job_secret: str,
        failpoints: Failpoints,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
    ) -> None:
        """Open nothing yet.

        Args:
            receiver: of layers and sums.
            job_secret: of the sources.
            failpoints: hit at `follow` after each chunk, with the version that it belongs or leads
                to as the step.
            connect_timeout_seconds: how long a source may take to accept a connection.
            stall_timeout_seconds: how long a source may pause within a message; between messages it
                may take as long as a step does.
        """
        self._receiver = receiver
        self._failpoints = failpoints
        self._stall_timeout_seconds = stall_timeout_seconds
        self._connections = Connections(
            wire.Kind.FOLLOW,
            job_secret,
            connect_timeout_seconds=connect_timeout_seconds,
            stall_timeout_seconds=stall_timeout_seconds,
        )
        self._lock = threading.Lock()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of tensors received."""
        return self._num_bytes

    def start(self, sources: Mapping[int, Sequence[str]]) -> None:
        """Start to follow layers, each from the first of its addresses that serves it."""
        by_address: dict[str, dict[int, Sequence[str]]] = {}
        for layer, addresses in sources.items():
            by_address.setdefault(addresses[0], {})[layer] = addresses[1:]
        for address, layers in by_address.items():
            threading.Thread(
                target=self._run, args=(address, layers), name="follow", daemon=True
            ).start()

    def interrupt(self) -> None:
        """Stop following; from any thread, without waiting, any number of times."""
        self._connections.interrupt()

    def _run(self, address: str, layers: Mapping[int, Sequence[str]]) -> None:
        try:
            self._follow(address, tuple(layers))
        except Exception as error:
            if self._connections.is_interrupted:
                return
            _log.warning("source_lost", address=address, cause=str(error))
            self._try_others(address, layers, error)

    def _try_others(
        self, address: str, layers: Mapping[int, Sequence[str]], cause: Exception
    ) -> None:
        for layer, rest in layers.items():
            if not rest:
                reason = str(cause).partition("\n")[0] or type(cause).__name__
                self._receiver.fail(
                    PlanariaError(
                        ErrorReason.COPY_FAILED,
                        f"layer {layer} cannot be followed any more: {address}: {reason}",
                        {"layer": str(layer), "sources": address, "reason": reason},
                    )
                )
                return
        self.start(layers)

    def _follow(self, address: str, layers: Sequence[int]) -> None:
        with self._connections.open(address) as connection:
            connection.sendall(wire.follow_request(layers))

            def take_message() -> None:
                connection.settimeout(None)  # a step may take long, and kernels notice the dead
                length = wire.receive_length(connection, wire.MAX_HEADER_BYTES)
                connection.settimeout(self._stall_timeout_seconds)
                message = wire.Message.decode(wire.receive_exactly(connection, length))
                match message.kind:
                    case wire.MessageKind.CURRENT:
                        self._receiver.become_current(layers)
                    case wire.MessageKind.NOT_HELD:
                        raise ValueError(f"does not hold layer {message.layer}")
                    case _:
                        self._take(message, receive(message))

            def receive(message: wire.Message) -> Mapping[str, Tensor]:
                record = message.record
                is_layer = message.kind is wire.MessageKind.LAYER
                version = message.version if is_layer or record is None else record.step + 1
                tensors = receive_tensors(
                    connection,
                    message.tensors,
                    after_chunk=lambda: self._failpoints.hit("follow", step=version),
                    between=take_message if is_layer else None,
                )
                with self._lock:
                    self._num_bytes += sum(header.num_bytes for header in message.tensors)
                return tensors

            while True:
                take_message()

    def _take(self, message: wire.Message, tensors: Mapping[str, Tensor]) -> None:
        if message.kind is wire.MessageKind.LAYER:
            self._receiver.take_layer(message.layer, message.version, tensors, message.record)
        elif message.record is not None:
            self._receiver.take_sum(
                CommittedSum(layer=message.layer, record=message.record, total=tensors.get("sum"))
            )
