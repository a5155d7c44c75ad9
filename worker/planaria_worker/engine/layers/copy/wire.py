"""The copy protocol, as bytes.

    connection:  magic, kind (copy, watch or follow), SHA-256 of the job's secret
    answer:      the server's engine id          (or the end: magic or secret were wrong)

    request:     layer, version
    answer:      length, header as JSON {"state": "held" | "not_held" | "other_version", ...}
    when held:   the tensors, as in `chunks`; taken back when the layer changed meanwhile

    follow:      number of layers, the layers
    messages:    length, header as JSON {"kind": "layer" | "sum" | "current" | "not_held", ...};
                 behind a layer or a sum its tensors; a sum may come between the chunks of a layer

    watch:       the server sends nothing but one `bye` before it ends in order; the peer sends a
                 byte now and then, for its acknowledgement.

Numbers are little-endian. Nothing is encrypted: the secret keeps strangers and mix-ups of ports
out, not those who read the network.
"""

import hashlib
import json
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any

import torch
from torch import Tensor

from planaria_worker.engine.commit_record import CommitRecord

MAGIC = b"planaria"
GREETING = struct.Struct("<8sB32s")
REQUEST = struct.Struct("<IQ")
LENGTH = struct.Struct("<I")
BYE = b"bye\n"
STILL_THERE = b"."
NO_MORE_CHUNKS = 0
CHUNK_BYTES = 4 << 20
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 16 << 20
MAX_ENGINE_ID_BYTES = 4096
MAX_FOLLOWED_LAYERS = 1 << 16


class Kind(IntEnum):
    """Purpose of a connection."""

    COPY = 1
    WATCH = 2
    FOLLOW = 3
    WATCH_BEACON = 4
    """As WATCH, but the `LivenessBeacon` holds the connection."""


class AnswerState(StrEnum):
    """Whether the source sends the layer."""

    HELD = "held"
    NOT_HELD = "not_held"
    OTHER_VERSION = "other_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """One tensor of a layer."""

    name: str
    dtype: str
    """As in `torch.<dtype>`."""
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What precedes the bytes."""

    state: AnswerState
    version: int | None = None
    tensors: tuple[TensorHeader, ...] = ()

    def encode(self) -> bytes:
        body = json.dumps(asdict(self), separators=(",", ":")).encode()
        return LENGTH.pack(len(body)) + body

    @classmethod
    def decode(cls, body: bytes) -> "Answer":
        """Decode what `encode` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            fields: dict[str, Any] = json.loads(body)
            return cls(
                state=AnswerState(fields["state"]),
                version=fields["version"],
                tensors=_tensor_headers(fields),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a copy header: {error}") from None


class MessageKind(StrEnum):
    """Kind of a message to a follower."""

    LAYER = "layer"
    """A whole layer; it replaces all that was sent of it before."""
    SUM = "sum"
    """The sum of a layer in a step that the source has committed."""
    CURRENT = "current"
    """All that the source has was sent."""
    NOT_HELD = "not_held"
    """The source does not hold the layer, or not in one version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The header of a message to a follower."""

    kind: MessageKind
    layer: int = -1
    version: int = -1
    """Of a layer: the committed steps that are in it."""
    record: CommitRecord | None = None
    """Of a sum: the commit. Of a layer: the one that made its version, when the source knows it."""
    tensors: tuple[TensorHeader, ...] = ()

    def encode(self) -> bytes:
        body = json.dumps(asdict(self), separators=(",", ":")).encode()
        return LENGTH.pack(len(body)) + body

    @classmethod
    def decode(cls, body: bytes) -> "Message":
        """Decode what `encode` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            fields: dict[str, Any] = json.loads(body)
            record = fields["record"]
            return cls(
                kind=MessageKind(fields["kind"]),
                layer=fields["layer"],
                version=fields["version"],
                record=None if record is None else CommitRecord(**record),
                tensors=_tensor_headers(fields),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a message to a follower: {error}") from None


def greeting(kind: Kind, job_secret: str) -> bytes:
    """The first bytes of a connection."""
    return GREETING.pack(MAGIC, kind, secret_digest(job_secret))


def _tensor_headers(fields: Mapping[str, Any]) -> tuple[TensorHeader, ...]:
    return tuple(
        TensorHeader(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in fields["tensors"]
    )


def follow_request(layers: Sequence[int]) -> bytes:
    """Encode the layers to follow."""
    return struct.pack(f"<I{len(layers)}I", len(layers), *layers)


def receive_follow_request(connection: socket.socket) -> tuple[int, ...]:
    """Receive what `follow_request` wrote; ValueError if it is invalid."""
    num_layers = receive_length(connection, MAX_FOLLOWED_LAYERS)
    return struct.unpack(f"<{num_layers}I", receive_exactly(connection, 4 * num_layers))


def secret_digest(job_secret: str) -> bytes:
    return hashlib.sha256(job_secret.encode()).digest()


def describe(tensors: Mapping[str, Tensor]) -> tuple[TensorHeader, ...]:
    """Headers of a layer's tensors, in the order in which their bytes are sent."""
    return tuple(
        TensorHeader(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            num_bytes=tensor.nbytes,
        )
        for name, tensor in tensors.items()
    )


def allocate(header: TensorHeader) -> Tensor:
    """An uninitialised tensor on the CPU for what a header describes.

    Raises:
        ValueError: type, shape and byte count do not belong together.
    """
    dtype = getattr(torch, header.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{header.name}: {header.dtype!r} is not a type of torch")
    tensor = torch.empty(header.shape, dtype=dtype)
    if tensor.nbytes != header.num_bytes:
        raise ValueError(
            f"{header.name}: {header.num_bytes} bytes for {header.dtype} {header.shape}"
        )
    return tensor


def raw_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU, not a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def chunks(tensor: Tensor) -> Iterator[memoryview]:
    """A tensor's bytes, piece by piece; from CUDA by way of one pinned buffer.

    A piece is valid until the next one is taken.
    """
    if tensor.device.type == "cpu":
        view = raw_bytes(tensor.detach().contiguous())
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]
        return
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    pinned = torch.empty(min(CHUNK_BYTES, len(flat)), dtype=torch.uint8, pin_memory=True)
    for start in range(0, len(flat), CHUNK_BYTES):
        piece = flat[start : start + CHUNK_BYTES]
        pinned[: len(piece)].copy_(piece)  # blocks until the bytes are there
        yield raw_bytes(pinned[: len(piece)])


def receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """Read so many bytes; ConnectionError if the peer disconnects before."""
    buffer = bytearray(num_bytes)
    receive_into(connection, memoryview(buffer))
    return bytes(buffer)


def receive_into(connection: socket.socket, view: memoryview) -> None:
    """Fill a view; ConnectionError if the peer disconnects before."""
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the peer closed the connection")
        view = view[count:]


def receive_length(connection: socket.socket, limit: int) -> int:
    """Read a length; ValueError if it exceeds the maximum."""
    (length,) = LENGTH.unpack(receive_exactly(connection, LENGTH.size))
    if length > limit:
        raise ValueError(f"a length of {length} where at most {limit} are possible")
    return int(length)
