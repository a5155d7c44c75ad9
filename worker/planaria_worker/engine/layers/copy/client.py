"""Fetches layers from peers: several at once, each from the first source that has it."""

import contextlib
import queue
import threading
from collections.abc import Mapping, Sequence

from torch import Tensor

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.layers.copy import wire
from planaria_worker.engine.layers.copy.chunks import RevokedError, receive_tensors
from planaria_worker.engine.layers.copy.connections import (
    CONNECT_TIMEOUT_SECONDS,
    STALL_TIMEOUT_SECONDS,
    Connections,
)

_MAX_PARALLEL = 4


class CopyInterrupted(Exception):  # noqa: N818 - an outcome, not a defect
    """`interrupt` was called: received data are dropped."""


class _NotServed(Exception):  # noqa: N818 - a source's answer
    """The source answered that it does not have the layer in this version."""


LayerTensors = Mapping[str, Tensor]
"""On the CPU, by name: parameters and optimizer state."""


class LayerFetcher:
    """Fetches the layers of one directive; unusable once interrupted."""

    def __init__(
        self,
        *,
        job_secret: str,
        failpoints: Failpoints,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
        max_parallel: int = _MAX_PARALLEL,
    ) -> None:
        """Open nothing yet.

        Args:
            job_secret: of the sources.
            failpoints: hit at `copy` after each chunk, with the version as the step.
            connect_timeout_seconds: how long a source may take to accept a connection.
            stall_timeout_seconds: how long a source may pause; a copy may take any time while bytes
                arrive.
            max_parallel: how many layers are fetched at once.
        """
        self._failpoints = failpoints
        self._max_parallel = max_parallel
        self._connections = Connections(
            wire.Kind.COPY,
            job_secret,
            connect_timeout_seconds=connect_timeout_seconds,
            stall_timeout_seconds=stall_timeout_seconds,
        )
        self._outcomes: queue.SimpleQueue[tuple[int, LayerTensors] | Exception] = (
            queue.SimpleQueue()
        )

    def fetch_all(
        self, sources: Mapping[int, Sequence[str]], version: int
    ) -> dict[int, LayerTensors]:
        """Fetch layers in parallel.

        Args:
            sources: data addresses by layer, the preferred one first.
            version: number of committed steps that every layer must be at.

        Returns:
            All layers.

        Raises:
            JobFailedError: COPY_FAILED: no source of a layer served it; names layer and sources.
            CopyInterrupted: `interrupt` was called.
        """
        waiting: queue.SimpleQueue[tuple[int, Sequence[str]]] = queue.SimpleQueue()
        for item in sources.items():
            waiting.put(item)
        for _ in range(min(self._max_parallel, len(sources))):
            threading.Thread(
                target=self._work, args=(waiting, version), name="copy-fetch", daemon=True
            ).start()
        layers: dict[int, LayerTensors] = {}
        while len(layers) < len(sources):
            outcome = self._outcomes.get()
            if isinstance(outcome, Exception):
                self.interrupt()
                try:
                    raise outcome
                finally:
                    del outcome  # its traceback keeps this frame, and so the layers that arrived
            layer, fetched = outcome
            layers[layer] = fetched
        return layers

    def fetch(self, layer: int, version: int, addresses: Sequence[str]) -> LayerTensors:
        """Fetch one layer, from one source after another until one serves it.

        Raises:
            JobFailedError: COPY_FAILED: no source served it; gives the reason of each.
            CopyInterrupted: `interrupt` was called.
        """
        failures: list[str] = []
        for address in addresses:
            try:
                return self._fetch_from(address, layer, version)
            except (OSError, ValueError, _NotServed, RevokedError, PlanariaError) as error:
                if self._connections.is_interrupted:
                    break
                failures.append(f"{address}: {error or type(error).__name__}")
        if self._connections.is_interrupted:
            raise CopyInterrupted(f"copying layer {layer} was interrupted")
        reasons = "; ".join(failures) or "it has no source"
        raise PlanariaError(
            ErrorReason.COPY_FAILED,
            f"layer {layer} in version {version} could not be copied: {reasons}",
            {"layer": str(layer), "version": str(version), "sources": ", ".join(addresses)},
        )

    def interrupt(self) -> None:
        """End every copy under way; from any thread, without waiting, any number of times."""
        self._connections.interrupt()
        self._outcomes.put(CopyInterrupted("copying was interrupted"))

    def _work(self, waiting: "queue.SimpleQueue[tuple[int, Sequence[str]]]", version: int) -> None:
        with contextlib.suppress(queue.Empty):
            while not self._connections.is_interrupted:
                layer, addresses = waiting.get_nowait()
                try:
                    self._outcomes.put((layer, self.fetch(layer, version, addresses)))
                except Exception as error:
                    self._outcomes.put(error)

    def _fetch_from(self, address: str, layer: int, version: int) -> LayerTensors:
        with self._connections.open(address) as connection:
            connection.sendall(wire.REQUEST.pack(layer, version))
            length = wire.receive_length(connection, wire.MAX_HEADER_BYTES)
            answer = wire.Answer.decode(wire.receive_exactly(connection, length))
            if answer.state is wire.AnswerState.NOT_HELD:
                raise _NotServed("does not hold the layer")
            if answer.state is wire.AnswerState.OTHER_VERSION or answer.version != version:
                raise _NotServed(f"holds it in version {answer.version}")
            return receive_tensors(
                connection,
                answer.tensors,
                after_chunk=lambda: self._failpoints.hit("copy", step=version),
            )
