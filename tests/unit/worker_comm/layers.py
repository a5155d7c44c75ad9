"""Layers in memory, and servers for them, for tests of copying."""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from planaria_worker.engine.failpoints import Failpoints
from planaria_worker.engine.layers.copy import CommitFeed, CopyServer, LayerSource, wire

HOST = "127.0.0.1"
SECRET = "the job's secret"


class MemoryLayers:
    """A LayerSource whose layers all have one version; `on_version` is called before each look.

    Attributes:
        served: the layers that were asked for, in that order.
    """

    def __init__(self, version: int, layers: Mapping[int, Mapping[str, Tensor]]) -> None:
        self.current: int | None = version
        self.layers = layers
        self.on_version: Callable[[], None] = lambda: None
        self.served: list[int] = []

    def version(self, layer: int) -> int | None:
        self.on_version()
        return self.current if layer in self.layers else None

    def tensors(self, layer: int) -> Mapping[str, Tensor]:
        self.served.append(layer)
        return self.layers[layer]


def layer_of_all_kinds(num_elements: int = 1000) -> dict[str, Tensor]:
    """Every type and shape that a layer's state may have."""
    generator = torch.Generator().manual_seed(num_elements)
    weight = torch.randn(num_elements, generator=generator)
    return {
        "weight": weight.clone().requires_grad_(),
        "transposed": weight.reshape(2, -1).t(),
        "bias/exp_avg": weight.to(torch.bfloat16),
        "sums": (weight * 2**40).to(torch.int64),
        "norm": weight.double().sum(),
        "mask": weight > 0,
        "empty": torch.empty(0, 7),
    }


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Whether two layers are equal bit by bit, in the same order."""
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and bytes(wire.raw_bytes(left[name].contiguous()))
        == bytes(wire.raw_bytes(right[name].contiguous()))
        for name in left
    )


def serve(
    source: LayerSource,
    *,
    engine_id: str = "source",
    feed: CommitFeed | None = None,
    failpoints: Failpoints | None = None,
) -> CopyServer:
    return CopyServer(
        HOST,
        engine_id=engine_id,
        job_secret=SECRET,
        source=source,
        feed=feed or CommitFeed(),
        failpoints=failpoints or Failpoints(),
    )


class FalseServer:
    """A source that answers every connection with the same bytes, then ends or stays silent."""

    def __init__(self, answer: bytes, *, ends: bool) -> None:
        self._answer = answer
        self._ends = ends
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self.first_connection = threading.Event()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            with contextlib.suppress(OSError):  # who refuses the answer may not wait for its end
                connection.recv(wire.GREETING.size)
                connection.sendall(self._answer)
                if self._ends:
                    connection.shutdown(socket.SHUT_WR)
            self.first_connection.set()


GREETED = wire.LENGTH.pack(5) + b"false"


def held(version: int, tensors: Mapping[str, Tensor]) -> bytes:
    """The header of an answer that announces a layer."""
    return wire.Answer(
        state=wire.AnswerState.HELD, version=version, tensors=wire.describe(tensors)
    ).encode()


def chunk(data: bytes) -> bytes:
    return wire.LENGTH.pack(len(data)) + data


def trailer(data: bytes) -> bytes:
    return wire.LENGTH.pack(wire.NO_MORE_CHUNKS) + hashlib.sha256(data).digest()
