"""What a source sends to a follower: current layers, then every committed sum, in order."""

import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from planaria_common.logging import get_logger
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.layers.copy import wire
from planaria_worker.engine.layers.copy.chunks import announce_insertion, send_tensors
from planaria_worker.engine.layers.copy.feed import CommitFeed, CommittedSum, Subscription

_log = get_logger("copy_server")

_LOOK_SECONDS = 1.0
"""How often a stream without anything to send looks whether the follower is still there."""
_REST_SECONDS = 0.001
_MAX_READ_SECONDS = 5.0
"""How long commits may disturb the reading of a layer. Copying it in memory takes a small part of a
step; a layer that an update left half-done stays unreadable."""


class LayerSource(Protocol):
    """The layers that an engine holds; the server's threads call it while the engine trains.

    A reader gets the version, reads, and gets the version again. If it is the same, the data belong
    to it: an update sets the version to None before it changes the first byte, and sets the new
    version after the last.
    """

    def version(self, layer: int) -> int | None:
        """Number of committed steps in the layer's tensors; None: not held, or being changed."""
        ...

    def tensors(self, layer: int) -> Mapping[str, Tensor]:
        """Parameters and optimizer state of a layer, by name; KeyError: no longer held."""
        ...


class CommitStream:
    """Serves one follower until it disconnects."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        source: LayerSource,
        feed: CommitFeed,
        failpoints: Failpoints,
    ) -> None:
        self._connection = connection
        self._source = source
        self._feed = feed
        self._failpoints = failpoints

    def serve(self, layers: Sequence[int]) -> None:
        """Send the layers one by one, and every sum that is committed in those that were sent.

        If the follower falls too far behind with a layer, send the whole layer again.

        Raises:
            OSError: the follower has disconnected.
        """
        waiting = deque(layers)
        is_current = False
        with self._feed.subscribe() as subscription:
            while True:
                dropped = subscription.take_dropped()
                if dropped:
                    _log.info("follower_fell_behind", layers=dropped)
                is_current = is_current and not dropped
                waiting.extend(dropped)
                if waiting:
                    if not self._send_layer(waiting.popleft(), subscription):
                        return
                elif committed := subscription.next():
                    self._send_sum(committed)
                elif not is_current:
                    self._send(wire.Message(kind=wire.MessageKind.CURRENT))
                    is_current = True
                elif committed := subscription.next(timeout_seconds=_LOOK_SECONDS):
                    self._send_sum(committed)
                else:
                    self._require_follower()

    def _send_layer(self, layer: int, subscription: Subscription) -> bool:
        """Send a layer, and between its chunks the sums of others; return whether it is held."""
        subscription.follow(layer)  # before it is read: every later step is in one or the other
        held = _read(self._source, layer)
        if held is None:
            self._send(wire.Message(kind=wire.MessageKind.NOT_HELD, layer=layer))
            return False
        version, tensors = held
        record = self._feed.last_record
        self._send(
            wire.Message(
                kind=wire.MessageKind.LAYER,
                layer=layer,
                version=version,
                record=record if record is not None and record.step + 1 == version else None,
                tensors=wire.describe(tensors),
            )
        )

        def send_others() -> bool:
            self._failpoints.hit("serve_follow", step=version)
            while committed := subscription.next(leaving=layer):
                announce_insertion(self._connection)
                self._send_sum(committed)
            return True

        return send_tensors(self._connection, tensors.values(), goes_on=send_others)

    def _send_sum(self, committed: CommittedSum) -> None:
        tensors = {} if committed.total is None else {"sum": committed.total}
        self._send(
            wire.Message(
                kind=wire.MessageKind.SUM,
                layer=committed.layer,
                record=committed.record,
                tensors=wire.describe(tensors),
            )
        )

        def go_on() -> bool:
            self._failpoints.hit("serve_follow", step=committed.record.step + 1)
            return True

        send_tensors(self._connection, tensors.values(), goes_on=go_on)

    def _send(self, message: wire.Message) -> None:
        self._connection.sendall(message.encode())

    def _require_follower(self) -> None:
        """Raise if the follower has disconnected: it sends nothing, so only its end is readable."""
        timeout = self._connection.gettimeout()
        self._connection.setblocking(False)
        try:
            self._connection.recv(1)
        except BlockingIOError:
            return
        finally:
            self._connection.settimeout(timeout)
        raise ConnectionError("the follower has disconnected")


def _read(source: LayerSource, layer: int) -> tuple[int, Mapping[str, Tensor]] | None:
    """Copy a layer of one version in memory; return None if it is not held in one version."""
    deadline = time.monotonic() + _MAX_READ_SECONDS
    while True:
        version = source.version(layer)
        try:
            tensors = {name: t.detach().clone() for name, t in source.tensors(layer).items()}
        except KeyError:
            return None
        if version is not None and source.version(layer) == version:
            return version, tensors
        if time.monotonic() > deadline:
            return None
        time.sleep(_REST_SECONDS)
