"""A layer arrives whole, in the version wanted, from the first source that has it; or not."""

import contextlib
import errno
import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from planaria_common.errors import ErrorReason, JobFailedError
from planaria_coordinator.domain.job.job_run import Limits
from planaria_worker.addresses import parse_address
from planaria_worker.engine.failpoints import Failpoint, Failpoints
from planaria_worker.engine.layers.copy import (
    CopyInterrupted,
    CopyServer,
    LayerFetcher,
    wire,
)
from planaria_worker.engine.layers.copy.chunks import receive_tensors
from planaria_worker.engine.layers.copy.connections import STALL_TIMEOUT_SECONDS
from unit.worker_comm.layers import (
    GREETED,
    HOST,
    SECRET,
    FalseServer,
    MemoryLayers,
    chunk,
    held,
    layer_of_all_kinds,
    same,
    serve,
    trailer,
)

VERSION = 17


def fetcher(secret: str = SECRET, *, stall_timeout_seconds: float = 60.0) -> LayerFetcher:
    return LayerFetcher(
        job_secret=secret,
        failpoints=Failpoints(),
        stall_timeout_seconds=stall_timeout_seconds,
    )


@pytest.fixture
def source() -> MemoryLayers:
    return MemoryLayers(VERSION, {layer: layer_of_all_kinds(2 + 2 * layer) for layer in range(9)})


@pytest.fixture
def server(source: MemoryLayers) -> Iterator[CopyServer]:
    with contextlib.closing(serve(source)) as running:
        yield running


@contextlib.contextmanager
def false_server(answer: bytes, *, ends: bool = True) -> Iterator[FalseServer]:
    with contextlib.closing(FalseServer(GREETED + answer, ends=ends)) as running:
        yield running


def refusal(addresses: list[str], *, secret: str = SECRET, stalls: float = 60.0) -> str:
    """Why a layer could not be copied."""
    with pytest.raises(JobFailedError) as caught:
        fetcher(secret, stall_timeout_seconds=stalls).fetch(3, VERSION, addresses)
    assert caught.value.reason is ErrorReason.COPY_FAILED
    assert caught.value.metadata["layer"] == "3"
    return caught.value.message


def test_a_layer_arrives_bit_by_bit(source: MemoryLayers, server: CopyServer) -> None:
    fetched = fetcher().fetch(3, VERSION, [server.address])

    assert same(fetched, source.layers[3])
    assert all(tensor.is_contiguous() for tensor in fetched.values())


def test_a_layer_larger_than_a_chunk_arrives(server: CopyServer, source: MemoryLayers) -> None:
    source.layers = {0: {"large": torch.arange(3 * wire.CHUNK_BYTES // 4 + 1)}}
    assert same(fetcher().fetch(0, VERSION, [server.address]), source.layers[0])


def test_many_layers_arrive_from_several_sources(source: MemoryLayers) -> None:
    """The first source that has a layer is used, and no more than one."""
    even = MemoryLayers(VERSION, {k: v for k, v in source.layers.items() if k % 2 == 0})
    with contextlib.closing(serve(source)) as all_of_it, contextlib.closing(serve(even)) as half:
        addresses = {layer: [half.address, all_of_it.address] for layer in source.layers}
        layers = fetcher().fetch_all(addresses, VERSION)

        assert set(layers) == set(source.layers)
        for layer, fetched in layers.items():
            assert same(fetched, source.layers[layer])
        assert sorted(source.served) == [1, 3, 5, 7]
        assert sorted(even.served) == [0, 2, 4, 6, 8]


def test_a_connection_serves_on_after_a_refusal(server: CopyServer) -> None:
    """`not held` and `another version` are answers, not ends."""
    with socket.create_connection(parse_address(server.address)) as connection:
        connection.sendall(wire.greeting(wire.Kind.COPY, SECRET))
        length = wire.receive_length(connection, 100)
        assert wire.receive_exactly(connection, length) == b"source"
        states = []
        for layer, version in ((99, VERSION), (0, VERSION + 1), (0, VERSION)):
            connection.sendall(wire.REQUEST.pack(layer, version))
            length = wire.receive_length(connection, wire.MAX_HEADER_BYTES)
            answer = wire.Answer.decode(wire.receive_exactly(connection, length))
            states.append((answer.state, answer.version))
        assert states == [
            (wire.AnswerState.NOT_HELD, None),
            (wire.AnswerState.OTHER_VERSION, VERSION),
            (wire.AnswerState.HELD, VERSION),
        ]


def test_the_next_source_is_tried(server: CopyServer, source: MemoryLayers) -> None:
    """After one that is dead, one that is wrong, and one in another version."""
    with (
        socket.create_server((HOST, 0)) as closed,
        contextlib.closing(serve(MemoryLayers(VERSION - 1, source.layers))) as old,
        false_server(b"nonsense" * 10) as wrong,
    ):
        dead = f"{HOST}:{closed.getsockname()[1]}"
        closed.close()
        addresses = [dead, "no address", wrong.address, old.address, server.address]
        assert same(fetcher().fetch(3, VERSION, addresses), source.layers[3])


def test_without_a_source_the_failure_says_why(source: MemoryLayers) -> None:
    with contextlib.closing(serve(MemoryLayers(16, source.layers))) as old:
        assert refusal([old.address]) == (
            f"layer 3 in version 17 could not be copied: {old.address}: holds it in version 16"
        )
    assert refusal([]).endswith("could not be copied: it has no source")


@pytest.mark.parametrize(
    "greeting",
    [
        wire.greeting(wire.Kind.COPY, "another secret"),
        wire.GREETING.pack(b"planariX", wire.Kind.COPY, wire.secret_digest(SECRET)),
        wire.GREETING.pack(wire.MAGIC, 7, wire.secret_digest(SECRET)),
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n",
    ],
    ids=["secret", "magic", "kind", "stranger"],
)
def test_strangers_get_no_byte(server: CopyServer, greeting: bytes) -> None:
    """Guard: the comparison in `CopyServer._greet`."""
    with socket.create_connection(parse_address(server.address)) as connection:
        connection.sendall(greeting + wire.REQUEST.pack(3, VERSION))
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_a_wrong_secret_is_refused(server: CopyServer) -> None:
    assert server.address in refusal([server.address], secret="another secret")


def test_a_commit_in_the_middle_is_noticed(server: CopyServer, source: MemoryLayers) -> None:
    """The layer begins to change between two looks at its version: what came is dropped, whichever
    look it is. Guard: the version is compared after each chunk."""
    num_looks = 0

    def count() -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks > begins_after:
            source.current = None

    source.on_version = count
    begins_after = 1000
    fetcher().fetch(3, VERSION, [server.address])
    num_looks_undisturbed = num_looks
    assert num_looks_undisturbed > 6
    for begins_after in range(num_looks_undisturbed):
        source.current, num_looks = VERSION, 0
        expected = "changed it while it was copied" if begins_after else "does not hold the layer"
        assert expected in refusal([server.address])


def test_after_a_commit_the_same_connection_serves(
    server: CopyServer, source: MemoryLayers
) -> None:
    """A change leaves the stream in step."""
    looks = iter([VERSION, VERSION, VERSION + 1])

    def change() -> None:
        source.current = next(looks, VERSION + 1)

    source.on_version = change
    assert "changed it" in refusal([server.address])
    assert same(fetcher().fetch(3, VERSION + 1, [server.address]), source.layers[3])


TENSORS = {"w": torch.arange(4, dtype=torch.int32)}
DATA = bytes(wire.raw_bytes(TENSORS["w"]))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the peer closed the connection"),
        (held(VERSION, TENSORS), "the peer closed the connection"),
        (held(VERSION, TENSORS) + chunk(DATA)[:-1], "the peer closed the connection"),
        (held(VERSION, TENSORS) + chunk(DATA), "the peer closed the connection"),
        (held(VERSION, TENSORS) + chunk(DATA) + trailer(DATA)[:-1], "closed the connection"),
        (held(VERSION, TENSORS) + chunk(DATA) + trailer(b"other"), "the SHA-256 of what arrived"),
        (held(VERSION, TENSORS) + chunk(DATA + b"x"), "a chunk of 17 bytes where 16 are missing"),
        (held(VERSION, TENSORS) + trailer(b""), "a chunk of 0 bytes where 16 are missing"),
        (held(VERSION, TENSORS) + chunk(DATA) * 2, "more bytes than the header announced"),
        (held(VERSION + 1, TENSORS) + chunk(DATA) + trailer(DATA), "holds it in version 18"),
        (chunk(b'{"state": "held"}'), "not a copy header: 'version'"),
        (chunk(b"nonsense"), "Expecting value"),
        (wire.LENGTH.pack(wire.MAX_HEADER_BYTES + 1), "where at most 16777216 are possible"),
        (
            held(VERSION, TENSORS).replace(b"int32", b"int16"),
            "w: 16 bytes for int16 (4,)",
        ),
        (
            held(VERSION, TENSORS).replace(b"int32", b"Event"),
            "w: 'Event' is not a type of torch",
        ),
    ],
)
def test_a_damaged_or_truncated_copy_is_refused(answer: bytes, reason: str) -> None:
    """Guards: the count of bytes, the SHA-256, and the checks of the header."""
    with false_server(answer) as source:
        assert reason in refusal([source.address])


def test_a_silent_source_is_left(server: CopyServer, source: MemoryLayers) -> None:
    """Guard: the stall timeout."""
    with false_server(held(VERSION, TENSORS), ends=False) as silent:
        assert "timed out" in refusal([silent.address], stalls=0.1)
        quick = fetcher(stall_timeout_seconds=1.0)
        fetched = quick.fetch(3, VERSION, [silent.address, server.address])
        assert same(fetched, source.layers[3])


def test_a_fence_interrupts_all_copies() -> None:
    """Every fetch is blocked in a silent source. Guard: `interrupt` answers, and cuts."""
    waiting = fetcher()
    raised = []

    def fetch(addresses: list[str]) -> None:
        try:
            waiting.fetch_all(dict.fromkeys(range(6), addresses), VERSION)
        except CopyInterrupted as error:
            raised.append(error)

    with false_server(b"", ends=False) as silent:
        thread = threading.Thread(target=fetch, args=([silent.address] * 3,))
        thread.start()
        silent.first_connection.wait()
        waiting.interrupt()
        waiting.interrupt()
        thread.join()
    assert len(raised) == 1
    with pytest.raises(CopyInterrupted):
        waiting.fetch(0, VERSION, [silent.address])


def test_one_failed_layer_ends_the_others() -> None:
    """`fetch_all` does not wait for a silent source when another layer has failed for good."""
    with (
        false_server(b"", ends=False) as silent,
        false_server(b"") as broken,
        pytest.raises(JobFailedError, match="layer 1 in version 17"),
    ):
        fetcher().fetch_all({0: [silent.address], 1: [broken.address]}, VERSION)


def test_memory_received_before_a_failure_is_freed_with_it(
    source: MemoryLayers, server: CopyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, not when the garbage collector comes by: the next recovery needs the memory."""
    arrived: list[weakref.ref[Tensor]] = []

    def receive(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        tensors = receive_tensors(*args, **kwargs)
        arrived.extend(map(weakref.ref, tensors.values()))
        return tensors

    monkeypatch.setattr("planaria_worker.engine.layers.copy.client.receive_tensors", receive)
    one_by_one = LayerFetcher(job_secret=SECRET, failpoints=Failpoints(), max_parallel=1)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(JobFailedError, match="layer 4 in version"):
            one_by_one.fetch_all({3: [server.address], 4: []}, VERSION)
        assert arrived
        assert not any(tensor() is not None for tensor in arrived)
    finally:
        gc.enable()


def test_nothing_to_fetch() -> None:
    assert fetcher().fetch_all({}, VERSION) == {}


@pytest.mark.parametrize("at", ["serve_copy", "copy"])
def test_failpoints_fail_in_the_middle(source: MemoryLayers, at: str) -> None:
    points = Failpoints((Failpoint(at=at, action="raise", step=VERSION),))  # type: ignore[arg-type]
    serving, fetching = (points, Failpoints()) if at == "serve_copy" else (Failpoints(), points)
    with contextlib.closing(serve(source, failpoints=serving)) as server:
        client = LayerFetcher(job_secret=SECRET, failpoints=fetching)
        with pytest.raises(Exception, match=r"closed the connection|failpoint at copy"):
            client.fetch_all({3: [server.address]}, VERSION)
        assert same(fetcher().fetch(3, VERSION, [server.address]), source.layers[3])


def test_a_server_outlives_a_lack_of_threads(
    server: CopyServer, source: MemoryLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who calls meanwhile is turned away. Guard: the thread that accepts goes on."""
    start, has_failed = threading.Thread.start, threading.Event()

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "copy-connection" and not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    with socket.create_connection(parse_address(server.address)) as turned_away:
        assert turned_away.recv(1) == b""
    assert same(fetcher().fetch(3, VERSION, [server.address]), source.layers[3])


def test_a_server_without_descriptors_does_not_spin(
    server: CopyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt would fail at once, and write a line."""
    attempts: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        attempts.append(listener)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    pause = threading.Event()
    with socket.create_connection(parse_address(server.address)):  # which wakes it
        while not attempts:
            pause.wait(0.01)
        pause.wait(0.2)
    assert len(attempts) < 10


def test_a_closed_server_lets_go(server: CopyServer) -> None:
    """Closing ends connections, the idle ones too."""
    with socket.create_connection(parse_address(server.address)) as connection:
        connection.sendall(wire.greeting(wire.Kind.COPY, SECRET))
        wire.receive_exactly(connection, wire.receive_length(connection, 100))
        server.close()
        assert connection.recv(1) == b""
    assert server.address in refusal([server.address])


def test_a_hanging_source_is_dropped_before_the_copying_engine_is_declared_lost() -> None:
    """Else an engine that is well is lost for a source that is not."""
    assert Limits().directive_seconds > 2 * STALL_TIMEOUT_SECONDS
