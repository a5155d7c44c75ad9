"""An engine that hangs says so itself; one that waits for a peer does not hang."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.errors import ErrorReason
from planaria_worker.engine.groups import Group, GroupKind, GroupSpec, Work
from planaria_worker.engine.groups.transport.backends import Pending
from planaria_worker.engine.process.watchdog import LOOKS_PER_DEADLINE, Watchdog
from planaria_worker.engine.telemetry import Stopwatch, Vitals
from planaria_worker.engine.training.faults import Fault


class Blocked(threading.Event):
    """Stands for an operation that does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_entered = threading.Event()

    def block(self) -> None:
        self.is_entered.set()
        self.wait(60)


class EndlessPending:
    """A group's operation that does not end."""

    def __init__(self, blocked: Blocked) -> None:
        self._blocked = blocked

    def wait(self, _seconds: float, _shut: threading.Event) -> bool:
        self._blocked.block()
        return True

    def is_over(self) -> bool:
        return False


class NoBackend:
    """Of a group in which nothing is started."""

    def send(self, tensor: Tensor, dst: int) -> Pending:
        raise AssertionError("nothing is started")

    def recv(self, tensor: Tensor, src: int) -> Pending:
        raise AssertionError("nothing is started")

    def all_reduce(self, tensor: Tensor) -> Pending:
        raise AssertionError("nothing is started")

    def has_message(self, src: int) -> bool:
        raise AssertionError("nothing is received")

    def cut(self) -> None: ...


class Seen:
    """A watched thread that is stuck in something."""

    def __init__(self, thread_id: int, model_seconds: float) -> None:
        self.time = 0.0
        self.stopwatch = Stopwatch(lambda: self.time)
        self.vitals = Vitals(lambda: None)
        self.vitals.enter(EngineState.ENGINE_STATE_TRAINING)
        self.watchdog = Watchdog(
            deadline_seconds=5.0,
            stopwatch=self.stopwatch,
            vitals=self.vitals,
            report=lambda _: None,
            thread_id=thread_id,
            model_seconds=model_seconds,
        )

    def look(self, times: int) -> Fault | None:
        return [self.watchdog.look() for _ in range(times)][-1]


@contextmanager
def stuck_in(work: Callable[[Blocked], None], model_seconds: float = 0.0) -> Iterator[Seen]:
    blocked = Blocked()
    thread = threading.Thread(target=work, args=(blocked,))
    thread.start()
    assert blocked.is_entered.wait(60)
    assert thread.ident is not None
    seen = Seen(thread.ident, model_seconds)
    seen.look(1)  # from now on it counts
    try:
        yield seen
    finally:
        blocked.set()
        thread.join()


def computing(blocked: Blocked) -> None:
    blocked.block()


def waiting(blocked: Blocked) -> None:
    group = Group(
        group_id="1/g",
        spec=GroupSpec(name="g", kind=GroupKind.ACTIVATIONS, members=("a", "b")),
        rank=0,
        backend=NoBackend(),
        timeout_seconds=1,
    )
    Work(group, EndlessPending(blocked), "receiving", 60.0).wait()


def test_a_hang_is_reported_with_the_function_it_is_in() -> None:
    with stuck_in(computing) as seen:
        seen.vitals.committed_steps = 7
        assert seen.look(LOOKS_PER_DEADLINE - 1) is None
        fault = seen.look(1)
    assert fault is not None
    assert fault.reason is ErrorReason.ENGINE_FAILED
    assert not fault.is_fatal
    assert fault.message.startswith("step 7: nothing was finished for 5.0 s; it is in ")


def test_waiting_for_a_peer_is_no_hang() -> None:
    with stuck_in(waiting) as seen:
        assert seen.look(3 * LOOKS_PER_DEADLINE) is None


def test_after_a_long_wait_the_deadline_starts_again() -> None:
    """It was told that the peer is gone, and has finished nothing for as long as it waited."""
    with stuck_in(waiting) as waits, stuck_in(computing) as computes:
        waits.look(3 * LOOKS_PER_DEADLINE)
        waits.watchdog._thread_id = computes.watchdog._thread_id
        assert waits.look(LOOKS_PER_DEADLINE - 1) is None
        assert waits.look(1) is not None


def test_an_engine_that_advances_does_not_hang() -> None:
    with stuck_in(computing) as seen:
        seen.look(LOOKS_PER_DEADLINE - 1)
        seen.stopwatch.lap("forward")
        assert seen.look(LOOKS_PER_DEADLINE) is None


def test_an_engine_that_does_not_train_does_not_hang() -> None:
    with stuck_in(computing) as seen:
        seen.vitals.enter(EngineState.ENGINE_STATE_PARKED)
        assert seen.look(3 * LOOKS_PER_DEADLINE) is None


def test_long_actions_are_given_time() -> None:
    with stuck_in(computing) as seen:
        seen.time += 2.0
        seen.stopwatch.lap("backward")
        seen.look(1)
        assert seen.look(4 * LOOKS_PER_DEADLINE - 1) is None
        assert seen.look(1) is not None


def test_the_first_action_is_given_the_time_that_the_model_was_measured_to_take() -> None:
    """Nothing has been finished yet that would say how long one takes."""
    with stuck_in(computing, model_seconds=2.0) as seen:
        assert seen.look(4 * LOOKS_PER_DEADLINE - 1) is None
        assert seen.look(1) is not None
    with stuck_in(computing, model_seconds=2.0) as seen:
        seen.time += 0.1
        seen.stopwatch.lap("forward")
        seen.look(1)
        assert seen.look(LOOKS_PER_DEADLINE) is not None
