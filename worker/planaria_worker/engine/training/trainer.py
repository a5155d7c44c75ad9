"""Training in one engine: what other threads ask of it, and the parts that do it.

    STARTING -> PARKED                              prepared
    PARKED -> REBUILDING -> TRAINING                a new context: its groups are built first
    REBUILDING -> PARKED                            its groups cannot be built
    PARKED -> TRAINING                              Activate or RollForward, context kept
    TRAINING -> REBUILDING -> TRAINING              a switch to a staged plan at a commit
    TRAINING -> PARKED | FINISHED                   fenced; the last step is committed
    PARKED -> FINISHED                              RollForward commits the last step

An engine whose pipeline is broken drops its groups, gradients and activations, keeps its layers,
and computes nothing until the next plan. An engine of a healthy pipeline only aborts the attempt to
commit: it keeps its context and its gradients until a plan says how the step is finished.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from planaria.api.worker.v1.report_pb2 import EngineState
from planaria_worker.engine.commit_record import CommitRecord
from planaria_worker.engine.fence import FencedError
from planaria_worker.engine.groups import DataParallelGroup
from planaria_worker.engine.groups.current_groups import CurrentGroups
from planaria_worker.engine.groups.link_failure import LinkFailure, LinkFailureKind
from planaria_worker.engine.layers.checkpoint import Checkpointer
from planaria_worker.engine.recovery.current_training import CurrentTraining
from planaria_worker.engine.recovery.failure_detector import FailureDetector
from planaria_worker.engine.recovery.handover import Handover
from planaria_worker.engine.recovery.plan_request import Answer, Builder, PlanRequest
from planaria_worker.engine.recovery.retained_work import RetainedWork
from planaria_worker.engine.recovery.roll_forward import (
    RollForwardDecision,
    SumsKey,
    decide_roll_forward,
)
from planaria_worker.engine.recovery.staging import StagedChange
from planaria_worker.engine.step.training_step import apply_step
from planaria_worker.engine.step_progress import StepProgress
from planaria_worker.engine.telemetry import Vitals
from planaria_worker.engine.training.activator import Activator
from planaria_worker.engine.training.step_reports import Listener, StepReporter
from planaria_worker.engine.training.training_loop import TrainingLoop
from planaria_worker.engine.training.training_thread import TrainingThread


class Trainer:
    """Owns the training; its public methods but `run` may be called from any thread."""

    def __init__(
        self,
        *,
        builder: Builder,
        job_secret: str,
        vitals: Vitals,
        failure_detector: FailureDetector,
        listener: Listener,
        checkpointer: Checkpointer,
    ) -> None:
        resources, clock = builder.resources, builder.clock
        self._resources = resources
        self._fence = resources.fence
        self._vitals = vitals
        self._checkpointer = checkpointer
        self._current_groups = CurrentGroups()
        failure_detector.follow(lambda: self._current_groups.peer_connections)
        self._reporter = StepReporter(resources, listener, clock)
        self._current_training = CurrentTraining(
            vitals=vitals, trace=resources.stopwatch.trace, num_commits=resources.job.num_commits
        )
        self._thread = TrainingThread(
            resources=resources, current_training=self._current_training, clock=clock
        )
        self.handover = Handover(
            builder=builder,
            job_secret=job_secret,
            current_training=self._current_training,
            current_groups=self._current_groups,
            failure_detector=failure_detector,
            on_join=self._submit_join,
        )
        self._loop = TrainingLoop(
            builder=builder,
            current_training=self._current_training,
            handover=self.handover,
            checkpointer=checkpointer,
            reporter=self._reporter,
            halt=self.halt,
            retain_idle=lambda: self._current_groups.retain_idle(()),
        )
        self._activator = Activator(
            builder=builder,
            current_training=self._current_training,
            current_groups=self._current_groups,
            handover=self.handover,
            loop=self._loop,
            thread=self._thread,
            reporter=self._reporter,
            halt=self.halt,
        )

    # What reports say.

    @property
    def progress(self) -> StepProgress:
        """The progress of the step in flight, or of the last one."""
        return self._current_training.progress

    @property
    def retained_work(self) -> RetainedWork | None:
        """What the engine keeps of the step in flight; None: its pipeline is broken, or none."""
        return self._current_training.retained_work

    @property
    def last_commit(self) -> CommitRecord | None:
        """The newest commit that the engine is a witness of."""
        return self._current_training.last_commit

    @property
    def park_time(self) -> datetime:
        """When training last ended."""
        return self._thread.park_time

    @property
    def idle_groups(self) -> Sequence[DataParallelGroup]:
        """Data-parallel groups that were retained, for the next generation."""
        return self._current_groups.idle_groups

    # The training thread.

    def run(self) -> None:
        """Run submitted tasks for ever; call it on the main thread."""
        self._thread.run()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task on the training thread as soon as it is parked."""
        self._thread.submit(task)

    def accept(self, request: PlanRequest, answer: Answer) -> Callable[[], None]:
        """Begin to activate a plan (`Activator.accept`)."""
        return self._activator.accept(request, answer)

    # Recovery: fence, halt, roll forward.

    def end_commit_attempts(self, lost: Collection[str], reason: str) -> bool:
        """End sums and commit attempts of a fenced engine; a healthy pipeline computes on.

        Args:
            lost: ids of the lost engines.
            reason: for the errors of operations that were blocked.

        Returns:
            Whether the pipeline is healthy, and its work retained. Otherwise the engine is halted.
        """
        current_training = self._current_training
        self._current_groups.retain_idle(lost)
        with current_training.lock:
            context = (
                current_training.context if current_training.retained_work is not None else None
            )
            members = {s.engine_id for s in context.view.pipeline.stages} if context else set()
        if context is None or not self._current_groups.is_pipeline_healthy or members & set(lost):
            self.halt(reason)
            return False
        self._current_groups.shut_data_parallel(reason)
        return True

    def fence_itself(self, reason: str) -> None:
        """Sum and commit nothing more in the plan in force, nor in one that is staged.

        Directives of a generation that this engine has not begun to train in still take effect.
        """
        self.handover.unstage(self._fence.newest + 1)
        context = self._current_training.context
        if self._vitals.state == EngineState.ENGINE_STATE_REBUILDING:
            self._fence.fence_running(self._fence.newest)
        elif context is not None:
            self._fence.fence_running(context.generation)
        self.halt(reason)

    def halt(self, reason: str) -> None:
        """End whatever the training thread does or waits for; its gradients are dropped."""
        context = self._current_training.halt()
        self._current_groups.shut(reason)
        if context is not None:
            self.submit(self._thread.drop_halted)

    def link_failed(self, failure: LinkFailure) -> None:
        """End the groups with a peer that cannot be reached any more."""
        why = "ended" if failure.kind is not LinkFailureKind.STALLED else "cannot be reached"
        self._current_groups.peer_lost(failure.peer_engine_id, why)

    def roll_forward(
        self, generation: int, record: CommitRecord, answer: Callable[[Sequence[int]], None]
    ) -> None:
        """Commit what a witness's record says; on the training thread.

        Args:
            generation: of the directive.
            record: the witness's.
            answer: called with the layers that stay stale, before the copies for a checkpoint are
                made: they may take longer than an answer may.

        Raises:
            FencedError: the engine has been fenced since.
            ValueError: the record is more than one step ahead.
        """
        self._fence.begin_roll_forward(generation)
        try:
            to_write = self._apply_record(record)
            version, held = self._vitals.committed_steps, self._resources.store.held()
            self._fence.settle()
            with self._fence.computing():
                answer([layer for layer in held if held[layer] != version])
                self._checkpointer.take(version, to_write, self._loop.note_copy)
        finally:
            self._fence.end()

    def _apply_record(self, record: CommitRecord) -> Sequence[int]:
        """Commit the step of a witness's record; return the layers to copy for a checkpoint."""
        current_training = self._current_training
        sums, resources = current_training.committable_sums, self._resources
        todo = decide_roll_forward(
            record,
            committed_steps=self._vitals.committed_steps,
            kept=None if sums is None else sums.complete_key,
        )
        if todo is RollForwardDecision.NOTHING:
            return ()
        to_write: Sequence[int] = ()
        if todo is RollForwardDecision.STALE:
            self.halt("its layers are of another step")
        else:
            by_layer = {} if sums is None else sums.by_layer
            apply_step(resources.job, resources.store, resources.feed, by_layer, record)
            if sums is not None and sums.key == SumsKey.of(record):
                to_write = self._checkpointer.announce(sums.view, record.step + 1)
        current_training.committable_sums = None
        self.submit(self._catch_up)  # first: an Activate that follows is submitted after it
        current_training.finish_commit(record, current_training.retained_after_commit(record))
        self._reporter.step_done(record)  # all witnesses may have died before they reported it
        if current_training.retained_work is None:
            current_training.drop()
        self._thread.park()
        return to_write

    def _catch_up(self) -> None:
        """Begin the next step after a roll forward, as the witnesses of the commit have done."""
        current_training = self._current_training
        is_current = current_training.progress.step == current_training.committed_steps
        if not current_training.has_live_context or is_current:
            return
        self._fence.resume()
        with self._thread.training():
            self._vitals.enter(EngineState.ENGINE_STATE_TRAINING)
            self._loop.train_on()

    def report_held_step(self) -> None:
        """Report the newest step now: the engines that were to report it may have died."""
        self._reporter.report_held()

    # Handover.

    def _submit_join(self, staged_change: StagedChange, record: CommitRecord) -> None:
        self.submit(lambda: self._switch_as_joiner(staged_change, record))

    def _switch_as_joiner(self, staged_change: StagedChange, record: CommitRecord) -> None:
        """Switch to a staged plan at a commit that other engines made, and train."""
        if self.handover.change_at(record) is not staged_change:
            return
        try:
            self._fence.begin(staged_change.generation)
        except FencedError:
            return
        with self._thread.training():
            self._resources.stopwatch.lap("idle")
            self._thread.drop_halted()
            self._current_training.committable_sums = None
            if self._loop.switch(staged_change, record) is not None:
                self._loop.train_from_start()
