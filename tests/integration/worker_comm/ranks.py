"""A pool of real processes that hold one rank each, told by the test what to do.

Each has a training thread that obeys one order after another, and a main thread that obeys at once,
as an engine's control thread does. They are forked from a server that has imported torch, since
importing it takes seconds.
"""

import multiprocessing
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from planaria_worker.engine.communication import Communicators, GroupBroken, StoreServer
from planaria_worker.engine.copying import CommitFeed, CopyServer
from planaria_worker.engine.failpoints import Failpoint, Failpoints
from planaria_worker.engine.plan_view import GroupSpec
from planaria_worker.engine_config import Transport
from unit.worker_comm.layers import HOST, SECRET, MemoryLayers

GLOO_TIMEOUT_SECONDS = 90.0
"""What a wait lasts when nobody wakes it."""
BOUND_SECONDS = 25.0
"""What a test waits for a rank to wake: long for a loaded machine, short against gloo's timeout."""

_CONTEXT = multiprocessing.get_context("forkserver")
# Not this module: the server does not have the path of the tests.
_CONTEXT.set_forkserver_preload(["planaria_worker.engine.communication"])


def large_layer() -> dict[str, torch.Tensor]:
    """More than the sockets' buffers take, in several chunks."""
    return {name: torch.arange(2_000_000) for name in ("weight", "exp_avg")}


@dataclass
class Member:
    """What a process holds; its methods are the orders."""

    engine_id: str
    device: str = "cpu"
    store: StoreServer | None = None
    sets: dict[str, Communicators] = field(default_factory=dict)
    storm: "Storm | None" = None
    server: CopyServer | None = None

    def serve(self, version: int, failpoints: tuple[Failpoint, ...] = ()) -> str:
        """Offers layers 0 and 1."""
        self.server = CopyServer(
            HOST,
            engine_id=self.engine_id,
            job_secret=SECRET,
            source=MemoryLayers(version, {0: large_layer(), 1: large_layer()}),
            feed=CommitFeed(),
            failpoints=Failpoints(failpoints),
        )
        return self.server.address

    def wait_until_watched(self) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while self.server is None or not self.server._watchers:
            assert time.monotonic() < deadline, "nobody watches"
            time.sleep(0.001)

    def leave(self) -> None:
        assert self.server is not None
        self.server.close()

    def open_store(self) -> str:
        self.store = StoreServer(HOST)
        return self.store.address

    def build(
        self,
        generation: str,
        specs: Sequence[GroupSpec],
        store_address: str,
        timeout_seconds: float = GLOO_TIMEOUT_SECONDS,
        failpoints: tuple[Failpoint, ...] = (),
        transport: Transport = "gloo",
        device: str = "cpu",
    ) -> list[str]:
        if transport == "nccl":
            os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"  # heeded from NCCL 2.30 on
        self.device = device
        self.sets[generation] = Communicators(
            engine_id=self.engine_id,
            host=HOST,
            device=torch.device(device),
            transport=transport,
            operation_timeout_seconds=GLOO_TIMEOUT_SECONDS,
            failpoints=Failpoints(failpoints),
        )
        groups = self.sets[generation].build(
            specs,
            store_address=store_address,
            prefix=f"job/{generation}/",
            timeout_seconds=timeout_seconds,
        )
        return list(groups)

    def all_reduce(self, generation: str, group: str, values: list[float], dtype: str) -> list[Any]:
        tensor = torch.tensor(values, dtype=getattr(torch, dtype), device=self.device)
        self.sets[generation].groups[group].all_reduce(tensor)
        return self._arrived(tensor, generation, group)

    def all_reduce_many(self, generation: str, group: str, count: int, size: int) -> float:
        tensors = [torch.full((size,), float(index), device=self.device) for index in range(count)]
        works = [self.sets[generation].groups[group].iall_reduce(t) for t in tensors]
        for work in works:
            work.wait()
        return sum(float(tensor[0]) for tensor in tensors)

    def send(self, generation: str, group: str, dst: int, values: list[float]) -> None:
        tensor = torch.tensor(values, dtype=torch.float32, device=self.device)
        self.sets[generation].groups[group].send(tensor, dst)

    def recv(self, generation: str, group: str, src: int, size: int) -> list[Any]:
        tensor = torch.zeros(size, device=self.device)
        self.sets[generation].groups[group].recv(tensor, src)
        return self._arrived(tensor, generation, group)

    def exchange(
        self, generation: str, outgoing: str, incoming: str, peer: int, messages: list[list[float]]
    ) -> list[list[Any]]:
        """Sends messages and receives as many of the same sizes, all under way at once."""
        groups = self.sets[generation].groups
        sent = [torch.tensor(values, device=self.device) for values in messages]
        received = [torch.zeros_like(tensor) for tensor in sent]
        works = [groups[outgoing].isend(tensor, peer) for tensor in sent]
        works += [groups[incoming].irecv(tensor, peer) for tensor in received]
        for work in works:
            work.wait()
        return [self._arrived(tensor, generation, incoming) for tensor in received]

    def _arrived(self, tensor: torch.Tensor, generation: str, group: str) -> list[Any]:
        """As in the engine: over NCCL only this waits for it, and notices an aborted group."""
        values: list[Any] = tensor.tolist()
        if self.sets[generation].groups[group].is_shut:
            raise GroupBroken("shut meanwhile")
        return values

    def shut(self, generation: str) -> None:
        self.sets[generation].shut()

    def shut_group(self, generation: str, group: str) -> None:
        self.sets[generation].groups[group].shut()

    def forget(self, generation: str) -> None:
        self.sets.pop(generation).shut()

    def count_resources(self, expected: tuple[int, int] | None = None) -> tuple[int, int]:
        """Descriptors and threads; waits until they are no more than expected."""
        deadline = time.monotonic() + BOUND_SECONDS
        while True:
            found = len(_listed("/proc/self/fd")), len(_listed("/proc/self/task"))
            fits = expected is None or all(f <= e for f, e in zip(found, expected, strict=True))
            if fits or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    def start_storm(self, store_address: str) -> None:
        self.storm = Storm(store_address)

    def stop_storm(self) -> tuple[int, list[str]]:
        assert self.storm is not None
        return self.storm.stop()


class Storm:
    """Threads that connect to servers in their own process as fast as they can, and use what they
    have: any connection that ends early is a failure."""

    def __init__(self, store_address: str) -> None:
        from planaria_worker.engine.communication.store import Rendezvous

        self._stopped = threading.Event()
        self._failures: list[str] = []
        self._num_connections = 0
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self._port: int = self._listener.getsockname()[1]
        self._rendezvous = Rendezvous.connect(
            store_address, "storm/", timeout_seconds=BOUND_SECONDS
        )
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._accept, self._connect, self._connect, self._use_store)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> tuple[int, list[str]]:
        self._stopped.set()
        for thread in self._threads[1:]:
            thread.join()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        return self._num_connections, self._failures

    def _accept(self) -> None:
        while True:  # to the end: who has connected waits for the echo
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(16):
                connection.sendall(data)

    def _connect(self) -> None:
        while not self._stopped.is_set():
            try:
                with socket.create_connection((HOST, self._port)) as connection:
                    self._num_connections += 1
                    for _ in range(4):
                        connection.sendall(b"x" * 16)
                        if not connection.recv(16):
                            raise ConnectionError("cut")
                        self._stopped.wait(0.001)
            except OSError as error:
                self._failures.append(f"connection: {error}")
                return

    def _use_store(self) -> None:
        for index in range(1 << 30):
            if self._stopped.wait(0.002):
                return
            try:
                self._rendezvous.publish(f"{os.getpid()}/{index % 8}", "x")
            except Exception as error:
                self._failures.append(f"store: {error}")
                return


def _main(engine_id: str, pipe: "Connection[Any, Any]") -> None:
    member = Member(engine_id=engine_id)
    orders: queue.SimpleQueue[tuple[int, str, dict[str, Any]]] = queue.SimpleQueue()
    lock = threading.Lock()

    def obey(number: int, name: str, arguments: dict[str, Any]) -> None:
        try:
            outcome = (True, getattr(member, name)(**arguments))
        except Exception as error:
            outcome = (False, (type(error).__name__, str(error)))
        with lock:
            pipe.send((number, *outcome))

    def train() -> None:
        while True:
            order = orders.get()
            with lock:
                pipe.send((order[0], None, None))
            obey(*order)

    threading.Thread(target=train, name="training", daemon=True).start()
    while True:
        try:
            at_once, number, name, arguments = pipe.recv()
        except EOFError:
            return
        if at_once:
            obey(number, name, arguments)
        else:
            orders.put((number, name, arguments))


def _listed(folder: str) -> list[int]:
    return sorted(int(entry.name) for entry in Path(folder).iterdir())


class RankError(AssertionError):
    """What an order raised in the process."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclass
class Pending:
    """An order that may still be obeyed."""

    rank: "Rank"
    number: int

    def result(self, timeout_seconds: float = BOUND_SECONDS) -> Any:
        return self.rank.wait_for(self.number, timeout_seconds)

    def error(self) -> RankError:
        """Waits, within the bound, until the order has failed."""
        try:
            outcome = self.result()
        except RankError as error:
            return error
        raise AssertionError(f"{self.rank.engine_id} returned {outcome!r}")


class Rank:
    """One process of the pool."""

    def __init__(self, engine_id: str) -> None:
        self.engine_id = engine_id
        self._pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_main, args=(engine_id, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self._number = 0
        self._begun = 0
        self._outcomes: dict[int, tuple[bool, Any]] = {}

    def start(self, order: str, **arguments: Any) -> Pending:
        """Has the training thread obey."""
        return self._send(False, order, arguments)

    def do(self, order: str, **arguments: Any) -> Any:
        """Has the training thread obey, and waits for it."""
        return self.start(order, **arguments).result()

    def at_once(self, order: str, **arguments: Any) -> Any:
        """Has the main thread obey, and waits for it."""
        return self._send(True, order, arguments).result()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def stop(self) -> None:
        """Stops it as SIGSTOP does, and waits until it is."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while self._state() != "T":
            assert time.monotonic() < deadline, "did not stop"
            time.sleep(0.005)

    def wait_until_blocked(self) -> None:
        """Waits until the training thread has begun its last order, and sleeps in it."""
        # Reading its state is all one can do from outside: what it waits in gives no sign.
        calm = 0
        deadline = time.monotonic() + BOUND_SECONDS
        while self._begun < self._number:
            self._receive(deadline)
        training_thread = _listed(f"/proc/{self.process.pid}/task")[1]
        while calm < 5:
            assert time.monotonic() < deadline, "did not block"
            time.sleep(0.01)
            calm = calm + 1 if self._state(training_thread) == "S" else 0

    def wait_for(self, number: int, timeout_seconds: float) -> Any:
        deadline = time.monotonic() + timeout_seconds
        while number not in self._outcomes:
            self._receive(deadline)
        succeeded, value = self._outcomes.pop(number)
        if not succeeded:
            raise RankError(*value)
        return value

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()

    def _send(self, at_once: bool, order: str, arguments: dict[str, Any]) -> Pending:
        self._number += 1
        self._pipe.send((at_once, self._number, order, arguments))
        return Pending(self, self._number)

    def _receive(self, deadline: float) -> None:
        if not self._pipe.poll(max(deadline - time.monotonic(), 0)):
            raise TimeoutError(f"{self.engine_id} has not answered in time")
        number, succeeded, value = self._pipe.recv()
        if succeeded is None:
            self._begun = number
        else:
            self._outcomes[number] = (succeeded, value)

    def _state(self, thread: int | None = None) -> str:
        path = Path(f"/proc/{self.process.pid}/task/{thread or self.process.pid}/stat")
        return path.read_text(encoding="ascii").rpartition(") ")[2][0]
