"""The fence: which generation an engine may act for, and whether it has passed the commit point.

One lock orders the two things that must not overlap: the control thread fences the engine, and the
training thread passes the commit point of a step. The first one wins: an engine that passed the
commit point finishes its update before it reports, and one that was fenced first never passes it
(protocol/recovery.md).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from planaria_worker.engine.telemetry import Trace

T = TypeVar("T")


class FencedError(Exception):
    """The engine may no longer act for this generation."""

    def __init__(self, generation: int, newest: int) -> None:
        super().__init__(f"generation {generation} is fenced by generation {newest}")
        self.generation = generation
        self.newest = newest


class StaleGenerationError(Exception):
    """A directive of an older generation than the newest seen."""

    def __init__(self, generation: int, newest: int) -> None:
        super().__init__(f"generation {generation} is older than generation {newest}")
        self.generation = generation
        self.newest = newest


class Fence:
    """Guards the generation of one engine; every method may be called from any thread."""

    def __init__(self, generation: int, trace: Trace | None = None) -> None:
        self._lock = threading.Lock()
        self._trace = trace or Trace()
        self._newest = generation
        self._fenced = generation
        self._mark = 0
        self._num_tasks = 0
        self._is_settled = True
        self._is_computing = False
        self._when_idle: list[Callable[[], None]] = []
        self._when_halted: list[Callable[[], None]] = []
        self._when_settled: list[Callable[[], None]] = []

    @property
    def newest(self) -> int:
        """The newest generation seen: older directives are refused."""
        return self._newest

    @property
    def mark(self) -> int:
        """The generation to park or switch for at a commit, or 0; sent with the vote."""
        return self._mark

    def see(self, generation: int) -> None:
        """Note the generation of a directive.

        Raises:
            StaleGenerationError: it is older than the newest.
        """
        with self._lock:
            self._see(generation)

    def fence(self, generation: int) -> None:
        """From now on start nothing, and pass no commit point, for an older generation.

        Raises:
            StaleGenerationError: a newer one has been seen.
        """
        with self._lock:
            self._see(generation)
            self._fenced = generation
            self._mark = 0
            self._trace.event("fence", generation=generation)

    def fence_running(self, generation: int) -> None:
        """From now on start nothing for this generation either; a newer one may come any time."""
        with self._lock:
            self._fenced = max(self._fenced, generation + 1)
            self._mark = 0
            self._trace.event("fence", generation=generation + 1)

    def fence_at_commit(self, generation: int) -> None:
        """End the older generations at the first commit on which all engines vote with this mark.

        A parked engine is fenced at once.

        Raises:
            StaleGenerationError: a newer one has been seen.
        """
        with self._lock:
            self._see(generation)
            if self._num_tasks:
                self._mark = generation
            else:
                self._fenced = generation

    def check(self, generation: int) -> None:
        """Make sure that work for a generation may start.

        Raises:
            FencedError: it may not.
        """
        if generation < self._fenced:
            raise FencedError(generation, self._fenced)

    def is_fenced(self, generation: int) -> bool:
        """Whether work for a generation may not start any more."""
        return generation < self._fenced

    def pass_commit_point(self, generation: int, next_generation: int) -> None:
        """Commit a step under the lock; the update must follow, then `settle`.

        Args:
            generation: whose sums are committed.
            next_generation: the mark that all engines voted with: after this commit nothing starts
                for an older generation. 0: they did not all vote with the same.

        Raises:
            FencedError: the fence came first; the step must not be committed.
        """
        with self._lock:
            self.check(generation)
            self._is_settled = False
            if next_generation > generation:
                self._fenced = max(self._fenced, next_generation)
                self._mark = 0

    def install(self, generation: int, change: Callable[[], T]) -> T:
        """Make a change on behalf of a directive, unless a newer generation has been seen.

        Returns what `change` returns.

        Raises:
            StaleGenerationError: the change is not made.
        """
        with self._lock:
            if generation < self._newest:
                raise StaleGenerationError(generation, self._newest)
            return change()

    def begin(self, generation: int) -> None:
        """Begin a task for a generation; for the training thread.

        Raises:
            FencedError: the engine has been fenced meanwhile.
        """
        with self._lock:
            self.check(generation)
            self._num_tasks += 1

    def resume(self) -> None:
        """Begin a task that finishes retained work, even if the engine is fenced.

        Called when the task is accepted: the engine must not seem idle until the task runs.
        """
        with self._lock:
            self._num_tasks += 1

    def begin_roll_forward(self, generation: int) -> None:
        """Begin to apply a witness's record; for the training thread.

        Raises:
            FencedError: the engine has been fenced meanwhile.
        """
        with self._lock:
            self.check(generation)
            self._num_tasks += 1
            self._is_settled = False

    def settle(self) -> None:
        """Note that a commit is applied and entered; for the training thread."""
        with self._lock:
            self._is_settled = True
            waiting, self._when_settled = self._when_settled, []
        for call in waiting:
            call()

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call back as soon as no commit is half applied: now, or from the training thread."""
        with self._lock:
            if not self._is_settled:
                self._when_settled.append(call)
                return
        call()

    def end(self) -> None:
        """End a task, and note that its commit, if any, is applied (`settle`).

        After the last task, a mark set by `fence_at_commit` takes effect, and what waited for the
        engine to be halted or idle is called. For the training thread.
        """
        self.settle()
        with self._lock:
            self._num_tasks = max(0, self._num_tasks - 1)
            if self._num_tasks:
                return
            self._fenced, self._mark = max(self._fenced, self._mark), 0
            waiting = self._when_halted + self._when_idle
            self._when_halted, self._when_idle = [], []
        for call in waiting:
            call()

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call back as soon as the training thread is idle: now, or from that thread."""
        with self._lock:
            if self._num_tasks:
                self._when_idle.append(call)
                return
        call()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Surround the training thread's passes, and its copies for a checkpoint.

        A halted engine begins no other pass after these, and begins no other context, so callbacks
        that wait for it to be halted are called at the beginning.
        """
        with self._lock:
            self._is_computing = True
            waiting, self._when_halted = self._when_halted, []
        try:
            for call in waiting:
                call()
            yield
        finally:
            with self._lock:
                self._is_computing = False

    def when_halted(self, call: Callable[[], None]) -> None:
        """Call back as soon as an engine that was fenced and halted can change nothing any more.

        That is now, if it is parked or in a pass or in copies for a checkpoint; else it is when the
        training thread would begin one of these, or parks.
        """
        with self._lock:
            if self._num_tasks and not self._is_computing:
                self._when_halted.append(call)
                return
        call()

    def _see(self, generation: int) -> None:
        if generation < self._newest:
            raise StaleGenerationError(generation, self._newest)
        self._newest = generation
