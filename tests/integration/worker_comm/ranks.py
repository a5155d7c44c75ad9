"""A pool of real processes that hold one rank each, told by the test what to do.

Each has a training thread that obeys one order after another, and a main thread that obeys at once,
as an engine's control thread does. They are forked from a server that has imported torch, since
importing it takes seconds.
"""

import multiprocessing
import os
import queue
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from integration.worker_comm.bounds import BOUND_SECONDS
from integration.worker_comm.member import Member, listed

_CONTEXT = multiprocessing.get_context("forkserver")
# Not this module: the server does not have the path of the tests.
_CONTEXT.set_forkserver_preload(["planaria_worker.engine.groups"])


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
        training_thread = listed(f"/proc/{self.process.pid}/task")[1]
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
