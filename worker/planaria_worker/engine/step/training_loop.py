"""The loop over steps: what the training thread does in a place, and between two places."""

from collections.abc import Callable, Sequence
from datetime import datetime

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_common.clock import Clock
from planaria_worker.engine.groups import Communicators, GroupBroken
from planaria_worker.engine.layers.checkpoint import Checkpointer
from planaria_worker.engine.plan.activation import Builder
from planaria_worker.engine.process.step_reports import Teller
from planaria_worker.engine.process.vitals import Vitals
from planaria_worker.engine.recovery.fence import FencedError
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.staging import NextPlace
from planaria_worker.engine.recovery.training_state import Standing
from planaria_worker.engine.step.commit_record import CommitRecord
from planaria_worker.engine.step.training_context import Place, renew_place
from planaria_worker.engine.step.training_step import (
    CommittedStep,
    VoidAttempt,
    attempt,
    begin_step,
    compute,
)


class TrainingLoop:
    """Trains in a place until the engine must stand still; for the training thread alone."""

    def __init__(
        self,
        *,
        builder: Builder,
        standing: Standing,
        handover: Handover,
        checkpointer: Checkpointer,
        vitals: Vitals,
        teller: Teller,
        clock: Clock,
        halt: Callable[[str], None],
        set_aside: Callable[[], None],
    ) -> None:
        self._builder = builder
        self._around = builder.around
        self._standing = standing
        self._handover = handover
        self._checkpointer = checkpointer
        self._vitals = vitals
        self._teller = teller
        self._clock = clock
        self._halt = halt
        self._set_aside = set_aside

    def train_from_start(self) -> None:
        """Trains in a new place: its first step may be one that others have begun."""
        self._begin_step(self._place())
        self.train()

    def train_renewed(self, generation: int, awaited: Communicators) -> None:
        """Finishes the step in flight of a place that is kept in another generation, and trains on.

        Its plan is the next one of those that the place has ahead.

        Args:
            generation: the new one.
            awaited: its groups across the pipelines, which are being built.
        """
        place = self._place()
        renew_place(
            place,
            view=place.upcoming.popleft(),
            generation=generation,
            awaited=awaited,
            resumed_step=place.ledger.step,
        )
        self.train()

    def train_on(self) -> None:
        """Trains in a place that is kept, from the next step on."""
        self._begin_step(self._place())
        self.train(self._place().view.pipeline.microbatches)

    def train(self, microbatches: Sequence[int] | None = None) -> None:
        """Steps until the job is done, everybody parks, or something breaks.

        In the place that the engine has, and in those that it takes behind commits. No caller holds
        on to the first one: its memory would be in use for as long as nothing breaks.

        Args:
            microbatches: those of the step in flight; None: those that the place begins with.
        """
        place = self._place()
        if microbatches is None:
            microbatches = () if place.view.is_follower else place.view.pipeline.first_microbatches
        try:
            while True:
                compute(place, place.ledger.missing(microbatches))
                done = attempt(place)
                if isinstance(done, VoidAttempt):
                    self._stand(place, done)
                    return
                next_place = self._go_on(place, done)
                if next_place is None:
                    return
                place = next_place
                self._begin_step(place)
                microbatches = () if place.view.is_follower else place.view.pipeline.microbatches
        except Exception as error:
            self._break_off(error, place)

    def change_over(self, next_place: NextPlace, record: CommitRecord) -> Place | None:
        """Takes another place behind a commit; returns it, unless it cannot be taken."""
        start_time = self._clock.now()
        self._vitals.enter(EngineState.ENGINE_STATE_REBUILDING)
        try:
            self._around.failpoints.hit("switch", record.step)
            place = self._handover.take(next_place, record)
            if place.view.is_last:
                self._teller.step_noted(record)
        except Exception as error:
            next_place.finish(error)
            next_place.drop()
            self._halt(str(error))
            self._teller.met(error, next_place.generation, record.step + 1)
            error.with_traceback(None)  # the answer, which is kept, would keep a place
            return None
        self._around.stopwatch.lap("rebuild")
        self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
        self._switched(next_place, start_time, record)
        return place

    def _place(self) -> Place:
        place = self._standing.place
        assert place is not None  # noqa: S101 - only the training thread drops it
        return place

    def _begin_step(self, place: Place) -> None:
        self._teller.step_begins()
        begin_step(place, self._vitals.committed_steps)

    def _go_on(self, place: Place, done: CommittedStep) -> Place | None:
        """Enters a commit; returns the place in which the next step begins, if one does."""
        record, view = done.record, place.view
        self._handover.settle_in(place)
        next_place = self._handover.behind(record) if done.broken is None else None
        is_kept = next_place is not None and self._handover.renew(place, next_place, record)
        if not is_kept:
            promise = self._standing.promise_behind(record) if done.broken is None else None
            self._standing.enter_commit(record, promise)
        to_write = self._checkpointer.announce(view, record.step + 1)
        if place.view.is_last:
            self._teller.step_noted(record)  # for a fence within the copies
        self._around.fence.settle()
        with self._around.fence.computing():
            self._checkpointer.take(record.step + 1, to_write, self.note_copy)
        if place.view.is_last and not place.view.is_follower:
            self._teller.step_done(record)
        if done.broken is not None:
            self._break_off(done.broken, place)
        elif next_place is not None and is_kept:
            self._around.failpoints.hit("switch", record.step)
            self._switched(next_place, self._clock.now(), record)
            return place
        elif next_place is not None and not next_place.view.keeps_step and not place.halt.is_set():
            self._standing.drop()
            return self.change_over(next_place, record)
        elif record.ends_generation or self._standing.is_finished:
            self._standing.drop()
        elif place.halt.is_set():
            fenced = FencedError(place.generation, self._around.fence.newest)
            self._break_off(fenced, place)
        else:
            return place
        return None

    def note_copy(self) -> None:
        """Every tensor that is copied for a checkpoint is progress."""
        self._around.stopwatch.lap("between")

    def _switched(self, next_place: NextPlace, start_time: datetime, record: CommitRecord) -> None:
        num_groups = len(next_place.communicators.groups)
        next_place.finish(self._builder.activated(start_time, num_groups, record.step + 1))

    def _stand(self, place: Place, done: VoidAttempt) -> None:
        """Waits for the next Activate with all that is computed, if the pipeline is whole."""
        if done.cause is not None:
            self._teller.met(done.cause, place.generation, place.ledger.step)
        if place.pipeline is None or place.halt.is_set():
            self._standing.drop()

    def _break_off(self, error: Exception, place: Place) -> None:
        # Only here: at a regular end, peers may still be reading the last verdict.
        if not place.halt.is_set():  # else the groups may be those of another generation by now
            if isinstance(error, GroupBroken):
                self._set_aside()  # somebody has died, or a fence has come: it collects everybody
            self._halt(str(error))
        self._standing.drop()
        self._teller.met(error, place.generation, place.ledger.step)
